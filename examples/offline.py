"""Prompts in, texts out, each with parameters of its own."""

import fdjax


def main() -> None:
    """Continues two prompts together."""
    llm = fdjax.LLM(max_model_len=256, max_num_seqs=2)  # or LLM("Qwen/Qwen3-8B")
    prompts = ["Once upon a time", "The old king said"]
    params = [
        fdjax.SamplingParams(temperature=0.7, top_k=50, max_tokens=30, seed=1),
        fdjax.SamplingParams(temperature=0.0, max_tokens=15),
    ]
    for output in llm.generate(prompts, params):
        print(f"{output.prompt}|{output.text}|{output.finish_reason}")


if __name__ == "__main__":
    main()
