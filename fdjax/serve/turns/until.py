"""`Until`: a text let through up to a marker."""

# White space that is held back, as it is not wanted in front of a marker.
_MAX_SPACE = 64


class Until:
    """Lets a text through up to the first of some markers, however it is cut.

    Text is held back while it could still become a marker. White space in front of a
    marker is dropped.

    Args:
        markers: none of them empty.
        scraps: characters that are dropped at the beginning.

    Attributes:
        found: the marker that ended the text last.
    """

    def __init__(self, *markers: str, scraps: str = "") -> None:
        self._markers = markers
        self._scraps = scraps
        self._held = ""
        self.found = ""

    def add(self, piece: str) -> tuple[str, str | None]:
        """What the next piece makes certain.

        Returns:
            Text in front of the marker, and what comes after it; `None` where no
            marker has come yet.
        """
        text = self._held + piece
        places = [(text.find(marker), marker) for marker in self._markers]
        places = [(at, marker) for at, marker in places if at >= 0]
        if places:
            at, self.found = min(places)
            self._held = ""
            return self._certain(text[:at].rstrip()), text[at + len(self.found) :]
        begun = max((_begun(text, marker) for marker in self._markers), default=0)
        certain = len(text) - begun
        cut = max(len(text[:certain].rstrip()), certain - _MAX_SPACE)
        self._held = text[cut:]
        return self._certain(text[:cut]), None

    def rest(self) -> str:
        """What is held back, which then no longer is: the text ends here."""
        held, self._held = self._held, ""
        return self._certain(held)

    def _certain(self, text: str) -> str:
        if self._scraps:
            text = text.lstrip(self._scraps)
        if text:
            self._scraps = ""
        return text


def _begun(text: str, marker: str) -> int:
    """How much of the marker stands at the end of the text."""
    longest = min(len(marker) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)
