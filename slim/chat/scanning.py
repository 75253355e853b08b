"""Finding marks and trimming white space in text that comes in pieces. Every cut gives the same text joined."""

from attrs import define, field

SPACE = " \t\r\n"


@define(eq=False)
class MarkFinder:
    """Looks for one mark. Holds back what may be its beginning, and nothing else."""

    mark: str
    _held: str = field(default="", init=False)

    def feed(self, text: str) -> tuple[str, str | None]:
        """The text before the mark, and what follows it; None as long as the mark has not come."""
        text = self._held + text
        before, found, after = text.partition(self.mark)
        if found:
            self._held = ""
            return before, after
        end = self._beginning(text)
        self._held = text[end:]
        return text[:end], None

    def flush(self) -> str:
        """What is held, which is no mark."""
        text, self._held = self._held, ""
        return text

    def _beginning(self, text: str) -> int:
        """Where the text's end may be the beginning of the mark; the text's length where it can't."""
        start = max(len(text) - len(self.mark) + 1, 0)
        while (start := text.find(self.mark[0], start)) >= 0:
            if self.mark.startswith(text[start:]):
                return start
            start += 1
        return len(text)


@define(eq=False)
class Trimmer:
    """Passes text on, and white space only once more text has come. So it can be dropped before a mark."""

    trimming: bool
    """White space is dropped until other text comes."""
    _space: list[str] = field(factory=list, init=False)

    def feed(self, text: str) -> str:
        body = text.rstrip(SPACE)
        if not body:
            self._space.append(text)
            return ""
        shown = "".join((*self._space, body))
        if self.trimming:
            shown = shown.lstrip(SPACE)
            self.trimming = False
        self._space = [text[len(body) :]]
        return shown

    def flush(self) -> str:
        """The white space that is held; none where it is dropped."""
        text = "" if self.trimming else "".join(self._space)
        self._space = []
        return text

    def cut(self) -> None:
        """A mark has come: the white space on both sides of it goes."""
        self.trimming = True
