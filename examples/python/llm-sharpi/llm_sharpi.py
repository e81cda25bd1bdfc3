# SPDX-License-Identifier: MIT
"""A plugin of the llm command-line tool: models of GGUF files, run by libsharpi in this process."""

import os
from typing import Optional

import llm
import pydantic

import sharpi


@llm.hookimpl
def register_models(register):
    register(SharpiModel())


class SharpiModel(llm.Model):
    model_id = "sharpi"
    can_stream = True

    class Options(llm.Options):
        path: Optional[str] = pydantic.Field(
            default=None, description="The GGUF file; else the environment's SHARPI_MODEL")
        n_ctx: Optional[int] = pydantic.Field(
            default=None, description="Tokens of context; default: the largest that fits")
        kv: Optional[str] = pydantic.Field(
            default=None, description="Type of the KV rows: f32, bf16, q8_0, q4, auto")
        max_tokens: Optional[int] = pydantic.Field(
            default=1024, description="Tokens of an answer at most")
        temperature: Optional[float] = pydantic.Field(default=None, description="0 = greedy")
        top_k: Optional[int] = pydantic.Field(default=None, description="0 = off")
        top_p: Optional[float] = pydantic.Field(default=None, description="1 = off")
        seed: Optional[int] = pydantic.Field(default=None, description="Equal seeds, equal answers")
        thinking: Optional[bool] = pydantic.Field(
            default=None, description="Whether to think first; default: as the model's template does")

    def __init__(self):
        self._opened = None  # (path, n_ctx, kv), model, session

    def _session(self, options):
        """The session of the last prompt, where file and settings are the same: what it holds of the
        conversation is not read again."""
        path = options.path or os.environ.get("SHARPI_MODEL")
        if not path:
            raise llm.ModelError("which file? -o path FILE.gguf, or SHARPI_MODEL in the environment")
        wanted = (path, options.n_ctx, options.kv)
        if self._opened is None or self._opened[0] != wanted:
            model = sharpi.Model(path, n_ctx=options.n_ctx, kv=options.kv)
            self._opened = (wanted, model, model.session())
        return self._opened[2]

    def execute(self, prompt, stream, response, conversation):
        options = prompt.options
        try:
            chat = sharpi.Chat(
                self._session(options), messages=[as_dict(m) for m in prompt.messages],
                max_tokens=options.max_tokens, thinking=options.thinking, seed=options.seed,
                temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)
            reply = chat.reply()
            yield from reply
            n_prompt = len(chat.session.model.chat_tokenize(chat.messages[:-1]))
            response.set_usage(input=n_prompt, output=len(reply.generation.tokens))
        except sharpi.Error as error:
            raise llm.ModelError(str(error)) from error


def as_dict(message):
    """A message of llm as sharpi takes it: its text."""
    text = "".join(part.text for part in message.parts if isinstance(part, llm.parts.TextPart))
    return {"role": message.role, "content": text}
