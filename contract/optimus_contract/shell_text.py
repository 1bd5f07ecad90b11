"""The commands of a text that a shell runs, as far as they can be told without running it. Pure.

It is read as POSIX and bash do: quotes, expansions, redirections, here-documents, comments, compound commands and
functions. None of these is a command's word; what an expansion gives is not known before it runs.
"""

from __future__ import annotations

import re
from typing import NamedTuple

UNKNOWN = "\0"
"""Stands in a word for what an expansion or a pattern of file names gives. No word of a command can have it."""
_MAX_DEPTH = 32
"""Subshells and expansions within one another; nobody writes as many."""
_BLANKS = " \t\r"
_ENDS_WORD = frozenset(_BLANKS + "\n;&|()<>")
_RESERVED = frozenset(["{", "}", "!", "if", "then", "elif", "else", "fi", "while", "until", "do", "done"])
"""What may stand before a command, or by itself."""
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[^]]*\])?\+?=")
_REDIRECTION = re.compile(r"(?:\d+|\{[A-Za-z_]\w*\})?(<<<|<<-?|<>|<&|>&|>>|>\||[<>](?!\())|&>>?", re.ASCII)
_OPERATOR = re.compile(r";;&|;;|;&|;|&&|&|\|\||\|&|\|")
_PARAMETER = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]", re.ASCII)
_ALTERNATIVES = re.compile(r"\{[^{}\s]*(?:,|\.\.)[^{}\s]*\}")
_COPROCESS = re.compile(r"[ \t]+\w+[ \t]+(?=[{(])")
"""The name of one, where it has any."""
_BEGINS_CONDITION, _ENDS_CONDITION = re.compile(r"\[\[(?=\s)"), re.compile(r"\]\](?![^\s;&|()<>])")
_ENDS_CASE, _IN = re.compile(r"esac(?![^\s;&|()<>])"), re.compile(r"in(?=[\s;])")
_BEGINS_LOOP = re.compile(r"(?=;|\{|do\s)")
_OPENS, _BAR, _NOTHING_IN_PARENTHESES = re.compile(r"\("), re.compile(r"\|"), re.compile(r"[ \t]*\([ \t]*\)")
_OF_TIME = re.compile(r"[ \t]+-p(?=\s)")
_SPACE, _COMMENT = re.compile(r"(?:[ \t\r]|\\\n)*"), re.compile(r"#[^\n]*")


class Commands(NamedTuple):
    """The words of each command that has any, without assignments and reserved words before them, as they are written
    from first to last."""

    own: tuple[tuple[str, ...], ...] = ()
    """Of the text itself and of its subshells, without calls of its functions."""
    nested: tuple[tuple[str, ...], ...] = ()
    """Of expansions: `$(...)`."""


def commands_of(text: str) -> Commands:
    """The commands of a text of a shell; none of a text that is cut, or that no shell would run."""
    reader = _Reader(text)
    try:
        reader.commands(until=None)
    except _Unreadable:
        return Commands()
    return reader.found()


class _Unreadable(Exception):
    """The text is cut, or no shell would run it."""


class _Word(NamedTuple):
    value: str
    """Without its quotes, with `UNKNOWN` for what is not known."""
    raw: str

    @property
    def is_plain(self) -> bool:
        """Nothing of it is quoted or expanded: it may be a reserved word."""
        return self.value == self.raw


def _started(words: list[str]) -> list[str]:
    """The command that these words start: without what the shell itself does before it."""
    while words and words[0] in ("exec", "command", "builtin", "nocorrect", "noglob"):
        builtin, words = words[0], words[1:]
        while builtin in ("exec", "command") and words and re.fullmatch("-.+", words[0], re.DOTALL):
            option, words = words[0], words[1:]
            if option == "--":
                break
            if builtin == "command" and re.search("[vV]", option):  # asks where it is
                return []
            if builtin == "exec" and re.fullmatch("-[cl]*a", option):  # another name for the program
                words = words[1:]
    return words


class _Reader:
    def __init__(self, text: str, depth: int = 0) -> None:
        self._text, self._depth = text, depth
        self._at = 0
        self._own: list[list[str]] = []
        self._nested: list[list[str]] = []
        self._functions: set[str] = set()
        self._documents: list[tuple[str, bool]] = []
        """Here-documents that begin after this line: what ends each, and whether tabs before that count for nothing."""

    def found(self) -> Commands:
        """What was read so far."""
        own, nested = (
            tuple(tuple(each) for each in commands if each[0] not in self._functions)
            for commands in (self._own, self._nested)
        )
        return Commands(own, nested)

    def commands(self, until: str | None) -> None:
        """Read commands up to this character and over it; None: to the end.

        Raises:
            _Unreadable: there is no such end, or no shell would run the text.
        """
        if self._depth > _MAX_DEPTH:
            raise _Unreadable
        self._depth += 1
        words: list[str] = []
        n_cases = 0
        while True:
            self._skip_blanks()
            character = self._peek()
            if character == until or character == "":
                self._keep(words)
                if character != (until or ""):
                    raise _Unreadable
                self._at += 1
                self._depth -= 1
                return
            if character == "\n":
                words = self._keep(words)
                self._end_line()
            elif character == "(":
                words = self._parenthesis(words)
            elif self._redirection():
                pass
            elif operator := _OPERATOR.match(self._text, self._at):
                words = self._keep(words)
                self._at = operator.end()
                if operator[0] in (";;", ";&", ";;&"):
                    n_cases -= self._patterns(n_cases)
            elif character == ")":
                raise _Unreadable
            elif words:
                words.append(self._word().value)
            else:
                words, more_cases = self._first_word()
                n_cases = max(0, n_cases + more_cases)

    def _keep(self, words: list[str]) -> list[str]:
        started = _started(words)
        if started and started[0]:
            self._own.append(started)
        return []

    def _first_word(self) -> tuple[list[str], int]:
        """The first word of a command, none if it only comes before one; and by how many more `case` is open."""
        if self._skip(_BEGINS_CONDITION):
            self._condition()
            return [], 0
        word = self._word()
        if _ASSIGNMENT.match(word.raw):
            if word.raw.endswith("=") and self._peek() == "(":
                self._array()
            return [], 0
        if not word.is_plain:
            return [word.value], 0
        if word.value == "esac":
            return [], -1
        if word.value == "case":
            self._skip_blanks()
            self._word()
            self._skip_lines()
            if self._word().raw != "in":
                raise _Unreadable
            return [], 1 - self._patterns(1)
        if word.value in ("for", "select"):
            self._loop()
        elif word.value == "function":
            self._skip_blanks()
            self._functions.add(self._word().value)
            self._skip(_NOTHING_IN_PARENTHESES)
        elif word.value == "coproc":
            self._skip(_COPROCESS)
        elif word.value == "time":
            self._skip(_OF_TIME)
        elif word.value not in _RESERVED:
            return [word.value], 0
        return [], 0

    def _parenthesis(self, words: list[str]) -> list[str]:
        """A subshell, arithmetic, or the parentheses of a function; what is left of the words before it."""
        if words:
            if len(words) > 1 or not self._skip(_NOTHING_IN_PARENTHESES):
                raise _Unreadable
            self._functions.add(words[0])
        elif not self._arithmetic():
            self._at += 1
            self.commands(until=")")
        return []

    def _loop(self) -> None:
        """What stands before the `do` of a loop over words."""
        self._skip_blanks()
        if self._arithmetic():
            return
        self._word()
        self._skip_lines()
        if not self._skip(_IN):
            if not self._skip(_BEGINS_LOOP):
                raise _Unreadable
            return
        while self._skip_blanks() not in (";", "\n"):
            self._word()

    def _patterns(self, n_cases: int) -> int:
        """Read the patterns before the next part of a `case`; 1 if there is no other part."""
        if not n_cases:
            raise _Unreadable
        self._skip_lines()
        if self._skip(_ENDS_CASE):
            return 1
        self._skip(_OPENS)
        while self._skip_lines() != ")":
            if not self._skip(_BAR):
                self._word()
        self._at += 1
        return 0

    def _condition(self) -> None:
        """`[[ ... ]]`: `<` is a comparison there."""
        while True:
            character = self._skip_lines()
            if self._skip(_ENDS_CONDITION):
                return
            if character and character in "()<>&|;":
                self._at += 1
            else:
                self._word()

    def _array(self) -> None:
        self._at += 1
        while self._skip_lines() != ")":
            self._word()
        self._at += 1

    def _redirection(self) -> bool:
        """Read one, with its target; whether there is one."""
        found = _REDIRECTION.match(self._text, self._at)
        if found is None:
            return False
        self._at = found.end()
        self._skip_blanks()
        target = self._word()
        if found[1] in ("<<", "<<-"):
            end = re.sub(r"\\(.)|['\"]", r"\1", target.raw, flags=re.DOTALL)
            self._documents.append((end, found[1] == "<<-"))
        return True

    def _end_line(self) -> None:
        """Read over the end of a line, and over the here-documents that it began."""
        self._at += 1
        for end, without_tabs in self._documents:
            while self._at < len(self._text):
                line = self._text[self._at : self._end_of_line()]
                self._at = min(self._at + len(line) + 1, len(self._text))
                line = line.rstrip("\r")
                if (line.lstrip("\t") if without_tabs else line) == end:
                    break
        self._documents = []

    # --- words --------------------------------------------------------------------------------------------------------

    def _word(self) -> _Word:
        """The word that begins here.

        Raises:
            _Unreadable: none does, or a quote or an expansion of it does not end.
        """
        start, parts = self._at, list[str]()
        while (character := self._peek()) and (character not in _ENDS_WORD or self._substitutes_process()):
            parts.append(self._part(character, is_first=self._at == start))
        if self._at == start:
            raise _Unreadable
        return _Word("".join(parts), self._text[start : self._at])

    def _part(self, character: str, is_first: bool) -> str:
        if character in "<>":
            self._at += 1
            return self._substitution()
        if character == "\\":
            escaped = self._text[self._at + 1 : self._at + 2]
            self._at += 2 if escaped else 1
            return "" if escaped == "\n" else escaped or "\\"
        if character == "'":
            start = self._at + 1
            self._at = self._after("'", start)
            return self._text[start : self._at - 1]
        if character == '"':
            return self._double_quoted()
        if character in "$`":
            return self._expansion(is_quoted=False)
        self._at += 1
        if character == "[" and is_first and self._peek() in ("", *_ENDS_WORD):
            return character
        is_pattern = character in "*?[" or (character == "{" and _ALTERNATIVES.match(self._text, self._at - 1))
        return UNKNOWN if is_pattern else character

    def _double_quoted(self) -> str:
        self._at += 1
        parts = list[str]()
        while (character := self._peek()) != '"':
            if character in ("$", "`"):
                parts.append(self._expansion(is_quoted=True))
                continue
            if not character:
                raise _Unreadable
            escaped = self._text[self._at + 1 : self._at + 2]
            if character == "\\" and escaped and escaped in '$`"\\\n':
                parts.append("" if escaped == "\n" else escaped)
                self._at += 2
            else:
                parts.append(character)
                self._at += 1
        self._at += 1
        return "".join(parts)

    def _expansion(self, is_quoted: bool) -> str:
        """What a dollar sign or a backquote begins."""
        if self._peek() == "`":
            return self._backquoted(is_quoted)
        self._at += 1
        following = self._peek()
        if following == "(":
            return UNKNOWN if self._arithmetic() else self._substitution()
        if following == "{":
            self._braces(is_quoted)
        elif following == "'" and not is_quoted:
            self._at = self._after("'", self._at + 1, escapes=True)
        elif following == '"' and not is_quoted:
            return self._double_quoted()
        else:
            self._skip(_PARAMETER)
        return UNKNOWN

    def _substitution(self) -> str:
        """The commands of an expansion, from its parenthesis on."""
        self._at += 1
        own, self._own = self._own, []
        self.commands(until=")")
        self._nested += self._own
        self._own = own
        return UNKNOWN

    def _backquoted(self, is_quoted: bool) -> str:
        start = self._at + 1
        self._at = self._after("`", start, escapes=True)
        escaped = r"\\([\\$`\"])" if is_quoted else r"\\([\\$`])"
        inner = _Reader(re.sub(escaped, r"\1", self._text[start : self._at - 1]), self._depth)
        inner.commands(until=None)
        self._nested += inner._own + inner._nested
        self._functions |= inner._functions
        return UNKNOWN

    def _braces(self, is_quoted: bool) -> None:
        """`${...}`."""
        if self._depth > _MAX_DEPTH:
            raise _Unreadable
        self._depth += 1
        self._at += 1
        while (character := self._peek()) != "}":
            if not character:
                raise _Unreadable
            if character in "$`":
                self._expansion(is_quoted)
            elif character == '"':
                self._double_quoted()
            elif character == "'" and not is_quoted:
                self._at = self._after("'", self._at + 1)
            else:
                self._at += 2 if character == "\\" else 1
        self._at += 1
        self._depth -= 1

    def _arithmetic(self) -> bool:
        """Read over `((...))`, if it is here: two parentheses may be two subshells, too."""
        if not self._text.startswith("((", self._at):
            return False
        depth = 0
        for place in range(self._at, len(self._text)):
            character = self._text[place]
            depth += (character == "(") - (character == ")")
            if depth == 1 and character == ")":
                if not self._text.startswith("))", place):
                    return False
                self._at = place + 2
                return True
        return False

    # --- places -------------------------------------------------------------------------------------------------------

    def _end_of_line(self) -> int:
        place = self._text.find("\n", self._at)
        return len(self._text) if place < 0 else place

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _substitutes_process(self) -> bool:
        return self._text.startswith(("<(", ">("), self._at)

    def _after(self, end: str, start: int, escapes: bool = False) -> int:
        """The place after the next `end`."""
        found = re.compile(rf"(?:[^{end}\\]|\\.)*{end}" if escapes else rf"[^{end}]*{end}", re.DOTALL)
        place = found.match(self._text, start)
        if place is None:
            raise _Unreadable
        return place.end()

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        found = pattern.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found is not None

    def _skip_blanks(self) -> str:
        """Read over blanks, continued lines and a comment; what follows."""
        self._skip(_SPACE)
        self._skip(_COMMENT)
        return self._peek()

    def _skip_lines(self) -> str:
        while self._skip_blanks() == "\n":
            self._end_line()
        return self._peek()
