"""`BeamTrace`: from the tokens and parents of every step to whole sequences."""

from collections.abc import Sequence


class BeamTrace:
    """What a group's beams were after each step, on the host."""

    def __init__(self) -> None:
        self._tokens: list[Sequence[int]] = []
        self._parents: list[Sequence[int]] = []

    def __len__(self) -> int:
        """Steps."""
        return len(self._tokens)

    def add(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Takes in a step: the last token of each beam, and which one it was before."""
        self._tokens.append(tokens)
        self._parents.append(parents)

    def path(self, beam: int, length: int) -> tuple[list[int], list[int]]:
        """The tokens of a beam as it was after `length` steps, and its parents."""
        tokens: list[int] = []
        parents: list[int] = []
        for step in reversed(range(length)):
            tokens.append(self._tokens[step][beam])
            beam = self._parents[step][beam]
            parents.append(beam)
        return tokens[::-1], parents[::-1]

    def hypothesis(
        self, parent: int, token: int, length: int
    ) -> tuple[list[int], list[int]]:
        """The same of a beam that ended with `token`: see `Hypotheses`."""
        tokens, parents = self.path(parent, length - 1)
        return [*tokens, token], [*parents, parent]
