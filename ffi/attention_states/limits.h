// What the handler of attention_states takes, beside what prefill_attention does.
#pragma once

#include "fdjax/limit.h"

namespace fdjax::attention_states {

// Of 32 new tokens each. Drafts are few; a word is read for each pair of a query and a
// new token.
inline constexpr int kMaxTreeWords = 64;

inline constexpr Limit kLimits[] = {{"max_tree_words", kMaxTreeWords}};

}  // namespace fdjax::attention_states
