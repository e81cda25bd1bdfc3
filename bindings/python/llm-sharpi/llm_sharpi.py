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
    supports_tools = True
    supports_schema = True

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
        must_call: Optional[bool] = pydantic.Field(
            default=None, description="The answer to what is asked is a call of a tool, by its schema; small models "
                                      "seldom make one by themselves")

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
        tools = [as_function(tool) for tool in prompt.tools or ()]
        messages = [one for message in prompt.messages for one in as_dicts(message)]
        try:
            session = self._session(options)
            chat = sharpi.Chat(
                session, messages=messages, tools=tools or None,
                max_tokens=options.max_tokens, thinking=options.thinking, seed=options.seed,
                temperature=options.temperature, top_k=options.top_k, top_p=options.top_p)
            reply = chat.reply(**wanted(session.model, prompt, messages, tools))
            yield from events(reply)
            for call in reply.tool_calls:
                response.add_tool_call(as_call(call))
            prompt_tokens = session.model.chat_tokenize(messages, tools=tools or None, thinking=options.thinking)
            response.set_usage(input=len(prompt_tokens), output=len(reply.generation.tokens))
        except sharpi.Error as error:
            raise llm.ModelError(str(error)) from error


def wanted(model, prompt, messages, tools):
    """What an answer has to be: of the schema, if there is one; calls, where they are asked for, until a
    tool has said something."""
    if prompt.schema:
        return {"response_format": prompt.schema}
    if prompt.options.must_call and tools and messages[-1]["role"] != "tool":
        calls = sharpi.CompiledGrammar(model, tools=tools, must_call=True, single_call=True, lenient=True)
        return {"grammar": calls.matcher()}
    return {}


def events(reply):
    """The pieces of an answer's content; before the first one, the thoughts."""
    n_thoughts = 0
    for piece in reply:
        if len(reply.reasoning) > n_thoughts:
            yield llm.parts.StreamEvent(type="reasoning", chunk=reply.reasoning[n_thoughts:])
            n_thoughts = len(reply.reasoning)
        yield piece
    if len(reply.reasoning) > n_thoughts:
        yield llm.parts.StreamEvent(type="reasoning", chunk=reply.reasoning[n_thoughts:])


def as_function(tool):
    """A tool of llm as templates have it."""
    return {"type": "function", "function": {
        "name": tool.name, "description": tool.description or "",
        "parameters": tool.input_schema or {"type": "object", "properties": {}}}}


def as_call(call):
    function = call.get("function", call)
    arguments = function["arguments"]
    if not isinstance(arguments, dict):
        raise llm.ModelError(f"the model called {function['name']} with what is no object: {arguments!r}")
    return llm.ToolCall(name=function["name"], arguments=arguments)


def as_dicts(message):
    """A message of llm as sharpi takes it; results of several tools are messages of their own."""
    parts = message.parts
    results = [part for part in parts if isinstance(part, llm.parts.ToolResultPart)]
    others = [part for part in parts if not isinstance(part, llm.parts.ToolResultPart)]
    out = [{"role": "tool", "tool_call_id": part.tool_call_id or "", "name": part.name, "content": part.output}
           for part in results]
    if others or not results:
        out.append(as_dict(message.role, others))
    return out


def as_dict(role, parts):
    known = (llm.parts.TextPart, llm.parts.ReasoningPart, llm.parts.ToolCallPart)
    for part in parts:
        if not isinstance(part, known):
            raise llm.ModelError("only text is read, no attachments")
    out = {"role": role, "content": "".join(p.text for p in parts if isinstance(p, llm.parts.TextPart))}
    thoughts = "".join(p.text for p in parts if isinstance(p, llm.parts.ReasoningPart))
    calls = [p for p in parts if isinstance(p, llm.parts.ToolCallPart)]
    if thoughts:
        out["reasoning"] = thoughts
    if calls:
        out["tool_calls"] = [{"id": p.tool_call_id or "", "type": "function",
                              "function": {"name": p.name, "arguments": p.arguments}} for p in calls]
    return out
