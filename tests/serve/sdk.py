"""The OpenAI client library against the server: what it parses, what it raises, how often it asks."""
import openai

from harness import CHAT, case

SERVER = ("--max-running", 4, "--kv-tokens", 2048, "--api-key", "sk-test")


def client(server, **options):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=options.pop("api_key", "sk-test"), **options)


@case("models, completions and chats, plain and streamed")
def _(server):
    c = client(server)
    name = c.models.list().data[0].id
    done = c.chat.completions.create(model=name, messages=CHAT, max_tokens=6, temperature=0, logprobs=True, top_logprobs=2, n=2)
    assert len(done.choices) == 2 and done.usage.completion_tokens == 12 and len(done.choices[0].logprobs.content) == 6
    text, usage = "", None
    for chunk in c.chat.completions.create(model=name, messages=CHAT, max_tokens=6, temperature=0, stream=True, stream_options={"include_usage": True}):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
    assert text == done.choices[0].message.content and usage.completion_tokens == 6
    done = c.completions.create(model=name, prompt="Once upon a time", max_tokens=6, temperature=0, logprobs=1, echo=True)
    assert done.choices[0].text.startswith("Once upon a time") and done.choices[0].logprobs.token_logprobs[0] is None
    parts = [chunk.choices[0].text for chunk in c.completions.create(model=name, prompt="Once upon a time", max_tokens=6, temperature=0, stream=True)]
    assert "Once upon a time" + "".join(parts) == done.choices[0].text


@case("B121 errors raise by class, and a client's fault is asked once")
def _(server):
    c = client(server, max_retries=2)
    name = c.models.list().data[0].id
    for error, call in ((openai.BadRequestError, lambda: c.chat.completions.create(model=name, messages=[])),
                        (openai.NotFoundError, lambda: c.chat.completions.create(model="other", messages=CHAT)),
                        (openai.AuthenticationError, lambda: client(server, api_key="wrong").models.list()),
                        (openai.APIStatusError, lambda: c.completions.create(model=name, prompt="x" * (5 << 20)))):
        before = server.metric("http_requests_total")
        try:
            call()
            raise AssertionError("no error was raised")
        except error as raised:
            assert raised.status_code in (400, 401, 404, 413) and raised.body["message"], raised
        assert server.metric("http_requests_total") == before + 2  # it, and the look before


@case("a stream that is closed early frees its place")
def _(server):
    c = client(server)
    for _ in range(5):
        stream = c.chat.completions.create(model="demo", messages=CHAT, max_tokens=500, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
