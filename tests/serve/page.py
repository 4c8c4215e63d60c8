"""The page at / in a real browser: conversation, stop, settings, ranks, keys, colours, narrow screens. Screenshots go to build/page/."""
import atexit
import os
import time

import browser
from harness import ROOT, case

SERVER = ("--served-model-name", "demo")
SHOTS = os.path.join(ROOT, "build", "page")
os.makedirs(SHOTS, exist_ok=True)
b = browser.Browser(browser.find())
atexit.register(b.close)

DONE = "!document.querySelector('.live') && document.querySelectorAll('#log li:not(.mine)').length === %d"
# Ratio of contrast (WCAG 2) of each visible element with text of its own, against the nearest ground behind it.
CONTRAST = """(() => {
	const channel = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
	const light = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
	const colour = text => text.match(/[\\d.]+/g).map(Number);
	const ground = e => { for (; e; e = e.parentElement) { const c = colour(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
	const bad = [];
	for (const e of document.querySelectorAll('body *')) {
		if (!e.checkVisibility() || !e.getClientRects().length || e.closest('.away, :disabled, script, style')) continue;
		if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
		const a = light(colour(getComputedStyle(e).color)), c = light(ground(e));
		const ratio = (Math.max(a, c) + 0.05) / (Math.min(a, c) + 0.05);
		if (ratio < 4.5) bad.push(`${e.tagName}#${e.id}.${e.className} ${ratio.toFixed(2)}`);
	}
	return bad.join(', ');
})()"""


def fresh(server, width=1200, height=800, scheme="light", phone=False):
    b.screen(width, height, scheme, phone)
    b.open(f"http://127.0.0.1:{server.port}/")
    b.wait("document.querySelector('#state').textContent === 'ready' && document.querySelector('#ranks').rows.length > 0 && !!model")
    setting("temperature", 0)
    setting("max_tokens", 40)


def setting(name, value):
    b.run(f"document.getElementById('{name}').value = '{value}'")


def say(text):
    b.run("document.getElementById('prompt').focus()")
    b.type(text)
    b.press("Enter")


def answer(number=-1):
    return b.run(f"[...document.querySelectorAll('#log li:not(.mine) .text')].at({number}).textContent")


def note(number=-1):
    return b.run(f"[...document.querySelectorAll('#log .note')].at({number}).firstChild.textContent")


@case("loads alone, without a complaint, and says what runs")
def loads(server):
    fresh(server)
    assert b.run("document.querySelector('#model').textContent") == "demo"
    assert b.run("document.activeElement.id") == "prompt", "the prompt has the focus"
    time.sleep(1.2)  # a second look at the metrics
    assert b.complaints() == [], b.complaints()
    home = f"http://127.0.0.1:{server.port}/"
    others = [a for a in b.addresses() if not a.startswith(home) and not a.startswith("data:")]
    assert not others, others
    policy = server.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy, policy


@case("an answer streams and is the server's")
def streams(server):
    fresh(server)
    say("Tell me a story about a dog.")
    b.wait(DONE % 1)
    want = server.chat([{"role": "user", "content": "Tell me a story about a dog."}], max_tokens=40).text
    assert answer() == want, (answer(), want)
    text = note()
    assert text.startswith("40 tokens · ") and "tok/s" in text and "first after" in text and text.endswith("cut at the limit"), text
    # What was said before is part of the next question.
    say("And then?")
    b.wait(DONE % 2)
    want = server.chat([{"role": "user", "content": "Tell me a story about a dog."}, {"role": "assistant", "content": answer(0)},
                        {"role": "user", "content": "And then?"}], max_tokens=40).text
    assert answer() == want, (answer(), want)
    b.click("#log li:last-child .note button")  # Again: the same, as it is greedy
    b.wait(DONE % 2)
    assert answer() == want, (answer(), want)
    assert b.complaints() == [], b.complaints()


@case("text grows while it streams")
def grows(server):
    fresh(server)
    setting("max_tokens", 600)
    b.run("""new MutationObserver(() => { const n = document.querySelector('.live .text')?.textContent.length; if (n) (window.seen ??= []).push(n); })
             .observe(document.getElementById('log'), {subtree: true, childList: true, characterData: true})""")
    say("Tell me a story about a dog.")
    b.wait("(window.seen || []).length > 3 || !document.querySelector('.live')")
    seen = b.run("window.seen || []")
    assert len(seen) > 2 and sorted(seen) == seen, seen
    b.press("Escape")
    b.wait("!document.querySelector('.live')")


def endless():
    """From here on answers go on past their end."""
    b.run("window.fetch = (old => (a, o) => old(a, o && o.body ? {...o, body: JSON.stringify({...JSON.parse(o.body), ignore_eos: true})} : o))(fetch)")


def stops(server, how):
    fresh(server)
    setting("max_tokens", 900)
    setting("temperature", 1)
    endless()
    say("Tell me a story.")
    b.wait("document.querySelector('.live .text').textContent.length > 5")
    how()
    b.wait("!document.querySelector('.live')", 5)
    assert "stopped" in note(), note()
    assert len(answer()) > 5
    assert b.run("!document.querySelector('#send').hidden && document.querySelector('#stop').hidden")
    # harness: settle() then sees that nothing runs on and all KV is free


@case("Esc stops")
def stops_by_key(server):
    stops(server, lambda: b.press("Escape"))


@case("the stop button stops")
def stops_by_button(server):
    stops(server, lambda: b.click("#stop"))


@case("settings reach the model")
def settings(server):
    fresh(server)
    setting("max_tokens", 5)
    setting("temperature", 1.5)
    setting("seed", 7)
    setting("system", "Be brief.")
    say("Tell me a story.")
    b.wait(DONE % 1)
    want = server.chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me a story."}], max_tokens=5, temperature=1.5, seed=7).text
    assert answer() == want, (answer(), want)
    assert note().startswith("5 tokens"), note()


@case("a refusal is shown, and the next message works")
def refusal(server):
    fresh(server)
    setting("temperature", 9)
    say("Hello")
    b.wait("!!document.querySelector('.error')")
    text = b.run("document.querySelector('.error').textContent")
    assert "temperature" in text, text
    assert b.run("document.querySelector('.error').getAttribute('role')") == "alert"
    setting("temperature", 0)
    say("Tell me a story.")
    b.wait(DONE % 2)
    want = server.chat([{"role": "user", "content": "Tell me a story."}], max_tokens=40).text
    assert answer() == want, (answer(), want)


@case("text is text: what looks like HTML stays so")
def plain(server):
    fresh(server)
    say("<b id=injected>x</b><script>window.injected = 1</script>")
    b.wait(DONE % 1)
    assert b.run("!document.getElementById('injected') && !window.injected")
    assert "<b id=injected>" in b.run("document.querySelector('.mine .text').textContent")


@case("ranks: steps, step time, memory")
def ranks(server):
    fresh(server)
    before = int(b.run("document.querySelector('#ranks').rows[1].cells[1].textContent"))
    say("Tell me a story.")
    b.wait(DONE % 1)
    b.wait(f"Number(document.querySelector('#ranks').rows[1].cells[1].textContent) > {before} && document.querySelector('#ranks').rows[1].cells[2].textContent !== '–'", 5)
    rows = b.run("[...document.querySelector('#ranks').rows].map(r => [...r.cells].map(c => c.textContent))")
    assert len(rows) == 2 and rows[0][1] == rows[1][1], rows
    assert all("iB" in cell for row in rows for cell in row[3:]), rows
    assert "of 4096 tokens" in b.run("document.querySelector('#kv').textContent")


@case("everything is in reach of the keyboard, in order, and each field has a name")
def keyboard(server):
    fresh(server)
    order = []
    for _ in range(20):
        b.press("Tab")
        order.append(b.run("document.activeElement.id || document.activeElement.textContent"))
        if order[-1] == "prompt":
            break
    want = ["send", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed", "stop_text", "system"]
    assert [o for o in order if o in want] == want, order
    assert "fresh" in order and order[-1] == "prompt" or "fresh" in order or len(order) == 20, order
    nameless = b.run("[...document.querySelectorAll('input, textarea')].filter(e => !e.labels.length).map(e => e.id)")
    assert nameless == [], nameless
    b.run("document.getElementById('prompt').focus()")
    b.type("one")
    b.press("Enter", modifiers=8)  # Shift
    assert b.run("document.querySelectorAll('#log li').length") == 0, "Shift+Enter does not send"


@case("both colour schemes can be read, wide and narrow; nothing is wider than a phone")
def looks(server):
    for name, width, height, phone in (("desktop", 1200, 800, False), ("phone", 390, 760, True)):
        for scheme in ("light", "dark"):
            fresh(server, width, height, scheme, phone)
            b.shot(f"{SHOTS}/{name}-{scheme}-empty.png")
            setting("max_tokens", 120)
            say("Tell me a story about a dog.")
            b.wait(DONE % 1)
            setting("max_tokens", 900)
            endless()
            say("Tell me a story.\nIt has " + "many, many " * 12 + "animals.")
            b.type("A prompt that is still being written, and is longer than one line of a phone")
            b.wait("document.querySelector('.live .text').textContent.length > 200")
            b.shot(f"{SHOTS}/{name}-{scheme}-streaming.png")
            b.press("Escape")
            b.wait("!document.querySelector('.live')")
            b.run("document.getElementById('prompt').value = ''; grow()")
            setting("temperature", 9)
            say("And a very long word: " + "x" * 200)
            b.wait("!!document.querySelector('.error')")
            b.run("document.activeElement.blur()")
            time.sleep(0.1)
            b.shot(f"{SHOTS}/{name}-{scheme}-chat.png")
            assert b.run(CONTRAST) == "", (name, scheme, b.run(CONTRAST))
            dark = b.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0] < 80")
            assert dark == (scheme == "dark"), scheme
            beyond = b.run("[document.scrollingElement.scrollWidth - innerWidth, document.scrollingElement.scrollHeight - innerHeight]")
            assert max(beyond) <= 0, f"{name}: {beyond} pixels too wide, too high"
            if not phone:
                continue
            assert not b.run("document.getElementById('side').checkVisibility()")
            b.click("#toggle")
            b.wait("document.getElementById('side').checkVisibility() && document.getElementById('toggle').getAttribute('aria-expanded') === 'true'")
            b.shot(f"{SHOTS}/{name}-{scheme}-settings.png")
            assert b.run(CONTRAST) == "", (name, scheme, b.run(CONTRAST))
            assert b.run("document.scrollingElement.scrollWidth - innerWidth") <= 0
            small = b.run("[...document.querySelectorAll('header button, #composer button, aside input')].filter(e => e.checkVisibility() && e.getBoundingClientRect().height < 32).map(e => e.id)")
            assert small == [], small
            b.press("Escape")
            b.wait("!document.getElementById('side').checkVisibility()")


@case("a new chat forgets, also while an answer comes")
def forgets(server):
    fresh(server)
    setting("max_tokens", 600)
    say("Tell me a story.")
    b.wait("document.querySelector('.live .text').textContent.length > 5")
    b.click("#fresh")
    b.wait("!running && !document.querySelector('#log li')")
    assert b.run("messages.length === 0 && !document.getElementById('empty').hidden")
    setting("max_tokens", 20)
    say("Hello")
    b.wait(DONE % 1)
    assert answer() == server.chat([{"role": "user", "content": "Hello"}], max_tokens=20).text


@case("a key is asked for where there is one", server=["--api-key", "sesame"])
def key(server):
    b.screen(1200, 800)
    b.open(f"http://127.0.0.1:{server.port}/")
    b.wait("document.querySelector('#state').textContent === 'needs an API key' && !document.getElementById('key-field').hidden")
    b.run("document.getElementById('key').focus()")
    b.type("sesame")
    b.press("Tab")
    b.wait("document.querySelector('#state').textContent === 'ready' && document.querySelector('#ranks').rows.length > 0 && !!model")
    setting("temperature", 0)
    setting("max_tokens", 8)
    say("Hello")
    b.wait(DONE % 1)
    assert answer() == server.chat([{"role": "user", "content": "Hello"}]).text


@case("a server that goes away is told", server=[], settle=False)
def goes_away(server):
    fresh(server)
    server.stop()
    b.wait("document.querySelector('#state').textContent === 'no connection'", 5)
    say("Hello")
    b.wait("!!document.querySelector('.error')")
    assert "cannot be reached" in b.run("document.querySelector('.error').textContent")


@case("a narrow screen of 320 pixels")
def very_narrow(server):
    fresh(server, 320, 568, "light", True)
    say("Tell me a story.")
    b.wait(DONE % 1)
    assert b.run("document.scrollingElement.scrollWidth - innerWidth") <= 0
    b.shot(f"{SHOTS}/narrow.png")
