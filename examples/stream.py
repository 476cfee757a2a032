"""Text as it comes."""

import fdjax


def main() -> None:
    """Writes a tale, a few tokens at a time."""
    llm = fdjax.LLM(max_model_len=256, max_num_seqs=1)
    params = fdjax.SamplingParams(temperature=0.7, top_k=50, max_tokens=40, seed=3)
    prompt = "There was once a fox who"
    print(prompt, end="")
    for chunk in llm.stream(prompt, params):
        print(chunk.text, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
