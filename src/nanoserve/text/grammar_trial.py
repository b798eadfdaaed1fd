"""Tries a grammar in a process of its own, which ends when it takes too long.

llguidance bounds most of its work, but not whether an expression matches anything at all:
300 characters of rules, or `multipleOf` with a long number, keep it busy for minutes, and a
thread cannot be stopped. So a grammar whose cost its text does not bound is compiled here
first, for the same vocabulary. What passes is compiled again where it is used, and takes as
long as it took here.
"""

import pickle
import resource
import signal
import subprocess
import sys

from nanoserve.errors import EngineError
from nanoserve.text.grammar_source import start_matcher
from nanoserve.text.grammar_spec import GrammarKind
from nanoserve.text.grammar_vocabulary import GrammarVocabulary

MAX_UNTRIED_CHARS = 2048  # takes a third of a second at most: 1,000 times `.*`
MAX_TRIAL_CPU_S = 1.0
MAX_TRIAL_BYTES = 2**30  # of address space; a vocabulary takes a tenth
_MAX_TRIAL_S = 60.0  # on a machine where it has to wait for a core: no fault of the grammar
_COSTLY_WORDS = ("pattern", "multipleOf", "allOf", "format")
_TOO_COSTLY = "it takes too long, or too much memory, to compile"


def needs_trial(kind: GrammarKind, source: str) -> bool:
    """Whether `source` leaves open how long compiling it takes.

    What costs is the intersection of expressions, which Lark writes with `&` and a JSON schema
    with certain keywords; one expression by itself costs by its length.
    """
    if kind == "lark" or len(source) > MAX_UNTRIED_CHARS:
        return True
    return kind == "json_schema" and any(word in source for word in _COSTLY_WORDS)


def try_source(vocabulary: GrammarVocabulary, source: str) -> str | None:
    """Compile `source` in another process; return why it was refused, if it was.

    Raises:
        EngineError: The process did not run, or not to its end.
    """
    command = [sys.executable, "-P", "-m", "nanoserve.text.grammar_trial"]
    try:
        result = subprocess.run(
            command,
            input=pickle.dumps((vocabulary, source)),
            capture_output=True,
            timeout=_MAX_TRIAL_S,
            check=False,
            process_group=0,  # who stops the server's group lets what it answers come to its end
        )
    except subprocess.TimeoutExpired as error:
        message = f"A grammar could not be tried: this machine took more than {_MAX_TRIAL_S:g} s."
        raise EngineError(message) from error
    if result.returncode < 0:  # ended by a signal, which is what the limits send
        return _TOO_COSTLY
    if result.returncode > 0:
        message = f"A grammar could not be tried: {result.stderr.decode(errors='replace')[-500:]}"
        raise EngineError(message)
    return result.stdout.decode() or None


def main() -> None:
    """Compile what stands on standard input, and write why it is refused, if it is."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_TRIAL_BYTES, MAX_TRIAL_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    vocabulary, source = pickle.load(sys.stdin.buffer)
    backend = vocabulary.build_backend()
    signal.setitimer(signal.ITIMER_PROF, MAX_TRIAL_CPU_S)  # its signal ends the process
    sys.stdout.write(start_matcher(backend, source).get_error())


if __name__ == "__main__":
    main()
