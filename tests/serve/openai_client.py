"""The OpenAI client library as programs use it: asynchronous, many at once, cancelled, retried, failing in the middle. sdk.py has the rest."""
import asyncio
import threading
import time

import openai

from harness import CHAT, case

SERVER = ("--max-running", 4, "--kv-tokens", 4096, "--api-key", "sk-test")
LONG = {"max_tokens": 800, "extra_body": {"ignore_eos": True}, "temperature": 1}


def client(server, kind=openai.OpenAI, **options):
    return kind(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="sk-test", **options)


def pending(server):
    return server.get("/health").json["pending"]


def until_free(server, seconds=5):
    end = time.time() + seconds
    while pending(server):
        assert time.time() < end, server.get("/health").body
        time.sleep(0.02)


@case("stop strings end text and stream alike")
def _(server):
    c = client(server)
    whole = c.completions.create(model="demo", prompt="Once upon a time", max_tokens=40, temperature=0).choices[0].text
    stop = whole[10:14]
    done = c.completions.create(model="demo", prompt="Once upon a time", max_tokens=40, temperature=0, stop=[stop, "never seen"]).choices[0]
    assert done.text == whole[:whole.index(stop)] and done.finish_reason == "stop" and done.model_extra["stop_reason"] == stop, done
    chunks = list(c.completions.create(model="demo", prompt="Once upon a time", max_tokens=40, temperature=0, stop=stop, stream=True))
    assert "".join(k.choices[0].text for k in chunks) == done.text
    assert [k.choices[0].finish_reason for k in chunks if k.choices[0].finish_reason] == ["stop"]


@case("n choices by one seed: the same again, each its own; streamed by index")
def _(server):
    c = client(server)
    ask = dict(model="demo", messages=CHAT, max_tokens=12, temperature=1, seed=11, n=3)
    first = [k.message.content for k in c.chat.completions.create(**ask).choices]
    again = [k.message.content for k in c.chat.completions.create(**ask).choices]
    assert first == again and len(set(first)) > 1, (first, again)
    parts, ends = ["", "", ""], [0, 0, 0]
    for chunk in c.chat.completions.create(**ask, stream=True):
        for choice in chunk.choices:
            parts[choice.index] += choice.delta.content or ""
            ends[choice.index] += choice.finish_reason is not None
    assert parts == first and ends == [1, 1, 1], (parts, first, ends)


@case("log-probabilities of a stream are those of the body")
def _(server):
    c = client(server)
    ask = dict(model="demo", messages=CHAT, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3)
    body = c.chat.completions.create(**ask).choices[0].logprobs.content
    stream = [t for chunk in c.chat.completions.create(**ask, stream=True) for choice in chunk.choices if choice.logprobs for t in choice.logprobs.content]
    assert [(t.token, t.logprob, t.bytes) for t in stream] == [(t.token, t.logprob, t.bytes) for t in body]
    assert all(len(t.top_logprobs) == 3 and t.top_logprobs[0].logprob == t.logprob and t.logprob <= 0 for t in body)


@case("prompts as ids and in lists")
def _(server):
    c = client(server)
    ids = server.post("/tokenize", {"prompt": "Once upon a time", "add_special_tokens": True}).json["tokens"]
    ask = dict(model="demo", max_tokens=6, temperature=0)
    text = c.completions.create(prompt="Once upon a time", **ask).choices[0].text
    assert c.completions.create(prompt=ids, **ask).choices[0].text == text
    two = c.completions.create(prompt=["Once upon a time", "The dog"], **ask)
    assert [k.index for k in two.choices] == [0, 1] and two.choices[0].text == text and two.usage.completion_tokens == 12


@case("asynchronous: 40 streams at once, each as it is alone")
def _(server):
    alone = [client(server).completions.create(model="demo", prompt=f"A story of {i}", max_tokens=10, temperature=0).choices[0].text for i in range(8)]

    async def one(c, i):
        return "".join([k.choices[0].text async for k in await c.completions.create(model="demo", prompt=f"A story of {i % 8}", max_tokens=10, temperature=0, stream=True)])

    async def everything():
        async with client(server, openai.AsyncOpenAI) as c:
            return await asyncio.gather(*(one(c, i) for i in range(40)))
    got = asyncio.run(everything())
    assert got == [alone[i % 8] for i in range(40)], got


@case("asynchronous: a task that is cancelled in the middle of a stream frees the engine")
def _(server):
    async def everything():
        async with client(server, openai.AsyncOpenAI) as c:
            begun = asyncio.Event()

            async def read():
                async for _ in await c.chat.completions.create(model="demo", messages=CHAT, stream=True, **LONG):
                    begun.set()
            tasks = [asyncio.create_task(read()) for _ in range(4)]
            await begun.wait()
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(r, asyncio.CancelledError) for r in results), results
    asyncio.run(everything())
    until_free(server)


@case("asynchronous: a task that is cancelled while it waits for a body frees the engine")
def _(server):
    async def everything():
        async with client(server, openai.AsyncOpenAI) as c:
            task = asyncio.create_task(c.chat.completions.create(model="demo", messages=CHAT, n=4, **LONG))
            while not await asyncio.to_thread(pending, server):
                assert not task.done(), task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    asyncio.run(everything())
    until_free(server)


@case("a stream left by its context manager, and one left by break")
def _(server):
    c = client(server)
    with c.chat.completions.create(model="demo", messages=CHAT, stream=True, **LONG) as stream:
        next(iter(stream))
    until_free(server)
    for _ in c.chat.completions.create(model="demo", messages=CHAT, stream=True, **LONG):
        break
    c.close()
    until_free(server)


@case("a time limit of the client raises and frees the engine")
def _(server):
    c = client(server, timeout=0.05, max_retries=0)
    try:
        for _ in range(20):  # one of them is longer than the limit
            c.chat.completions.create(model="demo", messages=CHAT, n=4, **LONG)
        raise AssertionError("no time-out")
    except openai.APITimeoutError:
        pass
    until_free(server)


@case("the raw answer carries the id that was sent")
def _(server):
    raw = client(server).chat.completions.with_raw_response.create(model="demo", messages=CHAT, max_tokens=2, extra_headers={"X-Request-Id": "mine-7"})
    assert raw.headers["x-request-id"] == "mine-7" and raw.parse().choices[0].finish_reason == "length"


@case("a full queue is waited for: 429, then again by itself", server=["--max-running", 1, "--max-queue", 0, "--kv-tokens", 2048])
def _(server):
    c = client(server, max_retries=8)
    stream = c.completions.create(model="demo", prompt="Once", stream=True, **LONG)
    next(iter(stream))
    thread = threading.Timer(0.7, stream.close)
    thread.start()
    done = c.completions.create(model="demo", prompt="Once", max_tokens=2, temperature=0)
    thread.join()
    assert done.usage.completion_tokens == 2
    assert server.metric("tandem_rejected_requests_total") > 0


@case("a rank that fails in the middle of a stream raises APIError; the next request works",
      server=["--max-running", 4, "--kv-tokens", 2048, "--fault", "rank=1,at=kernel,seq=80,kind=error"])
def _(server):
    c = client(server, max_retries=0)
    pieces = 0
    try:
        for chunk in c.chat.completions.create(model="demo", messages=CHAT, stream=True, **LONG):
            pieces += 1
        raise AssertionError("the stream ended well")
    except openai.APIError as error:
        assert error.message and not isinstance(error, openai.APIConnectionError), error
    assert pieces > 3
    done = client(server, max_retries=8).chat.completions.create(model="demo", messages=CHAT, max_tokens=3, temperature=0)
    assert done.usage.completion_tokens == 3
