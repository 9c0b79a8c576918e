"""Chat templates: a model's own jinja2 source, run in jinja2's sandbox. Purely text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError as JinjaError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from anchorstream.errors import TemplateError

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Message = Mapping[str, str]


class ChatTemplate:
    """A compiled template.

    Args:
        source: jinja2, as model files carry it.
        bos, eos: pieces that the template may name as `bos_token` and `eos_token`.

    Raises:
        TemplateError: the source does not parse.
    """

    def __init__(self, source: str, *, bos: str = "", eos: str = "") -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        environment.globals |= {"bos_token": bos, "eos_token": eos}
        try:
            self._template = environment.from_string(source)
        except (JinjaError, RecursionError) as error:
            raise TemplateError(f"the chat template does not parse: {error}") from None

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = False, **variables: Any) -> str:
        """The prompt for `messages`, each with `role` and `content`.

        Raises:
            TemplateError: the template raises, or does what the sandbox forbids.
        """
        try:
            return self._template.render(messages=messages, add_generation_prompt=add_generation_prompt, **variables)
        except Exception as error:  # whatever a stranger's template runs into is the template's fault
            raise TemplateError(f"the chat template failed: {error or type(error).__name__}") from None


def _raise(message: str) -> None:
    raise JinjaError(message)
