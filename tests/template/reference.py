"""Chat templates as Hugging Face renders them: jinja2, sandboxed, with its settings, filters and globals."""

import datetime
import functools
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2026, 3, 8, 9, 5, 7)
NOW_FIELDS = [NOW.year, NOW.month, NOW.day, NOW.hour, NOW.minute, NOW.second, NOW.isoweekday() % 7, NOW.timetuple().tm_yday - 1]


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class Raised(jinja2.exceptions.TemplateError):
    pass


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.filters["from_json"] = json.loads  # not Hugging Face's: of templates made for other engines
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda format: NOW.strftime(format)
    return made


ENVIRONMENT = environment()


@functools.lru_cache(maxsize=64)
def compiled(source):
    return ENVIRONMENT.from_string(source)


def decoded(messages):
    """Arguments of tool calls as mappings, where they are JSON text of one; and whether there were any."""
    messages, any_text = json.loads(json.dumps(messages)), False
    for message in messages:
        for call in message.get("tool_calls") or []:
            function = call.get("function", call)
            if isinstance(function.get("arguments"), str):
                try:
                    value = json.loads(function["arguments"])
                except ValueError:
                    continue
                if isinstance(value, dict):
                    function["arguments"], any_text = value, True
    return messages, any_text


def flat(messages):
    """Content in parts as one string."""
    made = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            message = {**message, "content": "".join(part["text"] for part in content)}
        made.append(message)
    return made


def as_parts(messages):
    return [{**m, "content": [{"type": "text", "text": m["content"]}]} if isinstance(m.get("content"), str) else m for m in messages]


def render(source, job):
    """The text of a job (see tests/e2e/lib/template_render.c)."""
    tools, kwargs, special = job.get("tools"), job.get("kwargs", {}), job.get("special_tokens", {})
    template = compiled(source)
    context = {"documents": None, **special, **json.loads(json.dumps(kwargs))}  # a copy: `indent` changes a list that it is given

    def once(messages):
        return template.render({**context, "messages": messages, "tools": tools, "add_generation_prompt": job.get("add_generation_prompt", False)})

    messages, any_text = decoded(job.get("messages", []))
    try:
        return once(messages)
    except Raised:
        raise
    except Exception as first:
        if not any_text:
            raise
        try:
            return once(job["messages"])
        except Exception:
            raise first
