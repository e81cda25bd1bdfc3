# SPDX-License-Identifier: MIT
"""The page in a real headless Chromium: what people do on it, and what they see. Looks are compared
by what is there (texts, boxes, drawn points), never by pixels. Every test also wants that no request
left the origin, and that the browser had nothing to complain about."""
import json
import os
import re
import time

import pytest
from devtools import Browser, Page, find_browser
from serving import ANSWER, QUESTION, Server, SlowRelay

WIDE, PHONE = (1280, 800), (390, 844)
# The fixture goes on counting, or repeats itself, to the longest answer allowed.
ENDLESS_QUESTION = "0 1 2 3 4 5 6 7 8 9"
# What the tab remembers when a page is opened for the first time: answers without chance.
GREEDY = "sessionStorage.sharpi ??= JSON.stringify({settings: {temperature: 0}})"


@pytest.fixture(scope="module")
def browser():
    path = find_browser()
    if not path:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    with Browser(path) as running:
        yield running


@pytest.fixture(scope="module")
def server():
    with Server("tiny-qwen35-q8_0.gguf") as running:
        yield running


@pytest.fixture
def tab(browser, server):
    """Makes pages; what they asked for and complained about is looked at in the end."""
    pages = []

    def make(size=WIDE, dark=False, mobile=False, at=server):
        page = Page(browser, *size, dark=dark)
        page.size(*size, mobile=mobile)
        pages.append((page, at))
        page.call("Page.addScriptToEvaluateOnNewDocument", source=f"if (location.protocol === 'http:') {GREEDY}")
        page.open(at.url + "/")
        page.wait("document.querySelector('#model').textContent !== ''", "the model's name")
        return page
    yield make
    for page, at in pages:
        strangers = [url for url in page.requests if not url.startswith(at.url + "/")]
        page.close()
        assert not strangers, f"requests that left the origin: {strangers}"
        assert not page.complaints, page.complaints


def ask(page, text=QUESTION, wait=True):
    before = page.run("document.querySelectorAll('.message').length")
    page.click("#prompt")
    page.type(text)
    page.press("Enter")
    page.wait(f"document.querySelectorAll('.message').length > {before}", "the message")
    if wait:
        done(page)


def done(page):
    page.wait("document.querySelector('#stop').hidden && !document.querySelector('[aria-busy]')", "the answer to end")


def texts(page, role):
    return page.run(f"[...document.querySelectorAll('.message.{role} .body')].map((e) => e.innerText.trim())")


def press_in(page, label, nth=-1):
    """Clicks the button of this label, the last one if there are several."""
    page.run(f"(() => {{ const all = [...document.querySelectorAll('.tools button')].filter((b) => b.textContent === {json.dumps(label)});"
             f"document.querySelector('.chosen')?.classList.remove('chosen'); all.at({nth}).classList.add('chosen'); }})()")
    page.click(".chosen")


def fits_the_width(page):
    assert page.run("document.documentElement.scrollWidth <= window.innerWidth"), "the page is wider than the window"


def test_a_question_is_answered_and_drawn(tab):
    page = tab()
    page.wait("document.querySelectorAll('#rows .layer').length === 8", "the layers, before there are rows")
    assert page.run("document.querySelectorAll('#plan .piece').length") >= 4
    assert "Weights" in page.run("document.querySelector('#plan-key').innerText")
    ask(page)
    assert texts(page, "user") == [QUESTION] and texts(page, "assistant") == [ANSWER]
    page.wait("/tokens, .* a second/.test(document.querySelector('.note').textContent)", "the note of tokens and times")
    page.wait("Number(document.querySelector('#tokens').textContent) > 20", "the tokens of the session")
    assert page.run("Number(document.querySelector('#speed').textContent) > 0")
    assert page.run("['#acceptance', '#drafts'].map((s) => document.querySelector(s).textContent)") == ["–", "none are made"]
    page.wait("document.querySelector('#rows .attention .live')?.getBoundingClientRect().width > 5", "drawn rows")
    boxes = [page.box(selector) for selector in ("#chat", "#memory", "#prompt", "#rows", "#plan")]
    assert all(width > 100 and height > 10 for _, _, width, height in boxes)
    assert boxes[0][0] + boxes[0][2] <= boxes[1][0] + 1, "the panel stands beside the conversation"
    fits_the_width(page)


def test_an_answer_is_stopped_by_its_button_and_by_escape(tab, server):
    with SlowRelay(server) as relay:
        page = tab(at=relay)
        for stop in (lambda: page.click("#stop"), lambda: page.press("Escape")):
            ask(page, ENDLESS_QUESTION, wait=False)
            page.wait("document.querySelector('.message.assistant:last-child .body')?.innerText.trim()", "the first words")
            stop()
            done(page)
            note = page.run("document.querySelector('.message:last-child .note').textContent")
            assert note.startswith("Stopped."), (note, texts(page, "assistant")[-1])
            assert texts(page, "assistant")[-1], "what was written stays"
            assert page.focus() == "prompt"
        server.wait_idle()
        page.click("#new")
        ask(page)
        assert texts(page, "assistant")[-1] == ANSWER
        page.close()


@pytest.mark.parametrize("who", ["ngram", "mtp"])
def test_drafts_that_were_right_are_shown(tab, who):
    """Counting repeats itself, so words that came before are right drafts."""
    with Server("tiny-qwen35-q8_0.gguf", "--draft", who, "--max-tokens", "200") as drafting:
        page = tab(at=drafting)
        assert page.run("document.querySelector('#acceptance').textContent") == "–"
        ask(page, ENDLESS_QUESTION)
        page.wait("document.querySelector('#acceptance').textContent !== '–'", "the share of drafts")
        drafting.wait_idle()
        (session,) = drafting.sessions()
        assert session["drafters"] == who
        assert 0 < session["n_accepted"] <= session["n_drafted"] and session["acceptance"] == session["n_accepted"] / session["n_drafted"]
        shown = f"{int(session['acceptance'] * 100 + 0.5)} %"
        page.wait(f"document.querySelector('#acceptance').textContent === '{shown}'", shown)
        # The share may look the same while the page still shows the counts of a moment before.
        counts = f"{session['n_accepted']} of {session['n_drafted']} tokens"
        page.wait(f"document.querySelector('#drafts').textContent === '{counts}'", counts)
        page.close()


def test_edit_and_regenerate(tab):
    page = tab()
    ask(page)
    ask(page, "The code of olive is 88752. What is the code of olive?")
    assert texts(page, "assistant")[1:] == ["The code of olive is 88752."]
    press_in(page, "Regenerate")
    done(page)
    assert len(texts(page, "assistant")) == 2 and texts(page, "assistant")[1].startswith("The code of")
    press_in(page, "Edit", 0)
    page.wait("document.activeElement.className === 'edit'", "the field to edit in")
    page.press("Escape")
    assert texts(page, "user")[0] == QUESTION, "Escape leaves the message as it was"
    press_in(page, "Edit", 0)
    page.run("document.querySelector('.edit').select()")
    page.type("The code of maple is 31415. What is the code of maple?")
    page.press("Enter")
    page.wait("document.querySelectorAll('.message').length === 2", "what came after to be dropped")
    done(page)
    assert texts(page, "assistant") == ["The code of maple is 31415."]
    assert texts(page, "user") == ["The code of maple is 31415. What is the code of maple?"]


def test_a_question_can_be_asked_before_the_model_is_named(tab):
    page = tab()
    page.call("Network.setBlockedURLs", urls=["*/v1/models"])
    page.call("Page.reload")
    page.wait("document.querySelector('#model')?.className.includes('error')", "the failure to be said")
    ask(page)
    assert texts(page, "assistant") == [ANSWER]
    page.close()
    page.complaints[:] = [text for text in page.complaints if not text.endswith("/v1/models")]


def test_compaction_is_drawn(tab):
    page = tab()
    ask(page, "The code of ember is 97697. " + "The road went down to the river. " * 30 + "What is the code of ember?")
    page.wait("!document.querySelector('#compact').disabled", "something to compact")
    rows = page.run("Number(document.querySelector('#budget').max)")
    assert rows > 400
    page.run("document.querySelector('#budget').focus()")
    assert page.run("Number(document.querySelector('#budget').value)") == (rows + 1) // 2, "half is what is offered"
    page.press("Home")
    assert page.run("document.querySelector('#budget').value") == "128", "fewer are of no use"
    assert page.run("document.querySelector('#budget-rows').textContent.replace(/\\s/g, ' ')") == f"128 of {rows:,} rows a layer".replace(",", " ")
    page.click("#compact")
    page.wait("document.querySelector('#report').textContent.startsWith('Kept 128 of')", "the report")
    report = page.run("document.querySelector('#report').textContent")
    assert "(the first 4, the last 64, 60 by retrieval)" in report
    assert "went back" in report and "nothing went back" not in report
    page.wait("document.querySelector('#slots').textContent.startsWith('128 rows')", "the rows that are left")
    time.sleep(0.4)  # bars move for a moment
    live, gone = page.run("['live', 'gone'].map((c) => document.querySelector(`#rows .attention .${c}`).getBoundingClientRect().width)")
    assert 0 < live < gone / 2, "less is drawn than there was"
    page.wait("!document.querySelector('#kept-section').hidden", "the drawing of kept positions")
    colours = page.run("(() => { const c = document.querySelector('#kept'); const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
                       "const seen = new Set(); for (let i = 0; i < d.length; i += 4) seen.add(d.slice(i, i + 4).join()); return seen.size; })()")
    assert colours > 2, "kept and dropped positions are drawn apart"
    ask(page, "What is the code of ember?")
    assert texts(page, "assistant")[-1] == ANSWER


def test_on_a_phone(tab):
    page = tab(PHONE, mobile=True)
    fits_the_width(page)
    assert page.box("#memory")[2] == 0, "the panel is closed"
    ask(page)
    assert texts(page, "assistant") == [ANSWER]
    for selector in ("#prompt", "#send", "#new", "#memory-toggle", ".message.user .body"):
        left, _, width, height = page.box(selector)
        assert left >= 0 and left + width <= PHONE[0] and height > 0, selector
    assert page.box("#memory-toggle")[3] >= 40 and page.box("#send")[3] >= 38, "large enough for a finger"
    page.click("#memory-toggle")
    assert page.run("document.querySelector('#memory-toggle').getAttribute('aria-expanded')") == "true"
    left, _, width, _ = page.box("#memory")
    assert left == 0 and width == PHONE[0]
    page.wait("document.querySelector('#rows .attention .live')?.getBoundingClientRect().width > 5", "drawn rows")
    fits_the_width(page)
    page.press("Escape")
    assert page.box("#memory")[2] == 0
    assert page.focus() == "memory-toggle"


def test_by_keyboard_alone(tab):
    page = tab()
    assert page.focus() == "prompt", "one can begin to write"
    page.type("The road went down to the river. " * 20 + QUESTION)
    page.press("Enter")
    done_text = "document.querySelector('.message.assistant .tools') !== null"
    page.wait(done_text, "the answer")
    page.wait("!document.querySelector('#budget').disabled", "the slider")
    page.run("document.querySelector('.skip').focus()")
    seen = []
    for step in range(20):
        if step:
            page.press("Tab")
        seen.append(page.focus())
        outline = page.run("(() => { const e = document.activeElement; const s = getComputedStyle(e.id === 'prompt' ? e.closest('form') : e);"
                           "return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2 || s.borderColor === getComputedStyle(document.querySelector('#send')).backgroundColor; })()")
        assert outline, f"the focus on {seen[-1]} cannot be seen"
        if seen[-1] == "compact":
            break
    order = [name for name in seen if name in ("new", "settings-open", "scroll", "Edit", "Regenerate", "prompt", "send", "budget", "compact")]
    assert order == ["new", "settings-open", "scroll", "Edit", "Regenerate", "prompt", "send", "budget", "compact"], seen
    assert seen[0].startswith("Go to the message field")
    page.run("document.querySelector('#settings-open').focus()")
    page.press("Enter")
    page.wait("document.querySelector('#settings').open", "the settings")
    assert page.focus() == "system"
    page.press("Escape")
    page.wait("!document.querySelector('#settings').open", "the settings to close")
    assert page.focus() == "settings-open"
    page.run("document.querySelector('#new').focus()")
    page.press("Space")  # the browser keeps the conversation, so nothing is asked
    page.wait("document.querySelectorAll('.message').length === 0", "an empty conversation")
    assert page.focus() == "prompt" and page.run("document.querySelector('#new').disabled")


def test_names_and_roles_for_screen_readers(tab):
    page = tab()
    ask(page)
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    said = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")}
    for wanted in (("log", "Messages of this conversation"), ("textbox", "Your message"), ("button", "Send"), ("button", "Compact"),
                   ("complementary", "Memory"), ("main", ""), ("banner", "")):
        assert wanted in said, wanted
    assert any(role == "slider" and name for role, name in said)
    unnamed = [node for node in nodes if not node.get("ignored") and not node.get("name", {}).get("value")
               and node["role"]["value"] in ("button", "textbox", "slider", "image", "img")]
    assert not unnamed, unnamed
    page.wait("document.querySelector('#announce').textContent === 'The answer is complete.'", "it to be announced")


def luminance(colour):
    channels = [int(part) / 255 for part in colour.split("(")[1].rstrip(")").split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", (False, True))
def test_text_can_be_read_in_light_and_dark(tab, dark):
    page = tab(dark=dark)
    ask(page)
    ground = luminance(page.run("getComputedStyle(document.documentElement).backgroundColor"))
    assert (ground < 0.1) == dark
    for selector in (".message.assistant .body", ".message.user .body", ".note", ".key .name", ".memory small", "#send", ".keys", ".tools button"):
        text, behind = page.run(
            f"(() => {{ let e = document.querySelector({json.dumps(selector)}); const text = getComputedStyle(e).color;"
            "while (e && /, 0\\)|transparent/.test(getComputedStyle(e).backgroundColor)) e = e.parentElement;"
            "return [text, getComputedStyle(e ?? document.documentElement).backgroundColor]; })()")
        light, heavy = sorted((luminance(text), luminance(behind)), reverse=True)
        assert (light + 0.05) / (heavy + 0.05) >= 4.5, f"{selector}: {text} on {behind}"


def colour_of(page, selector, property="backgroundColor"):
    """What the style says, as (red, green, blue)."""
    said = page.run(f"getComputedStyle(document.querySelector({json.dumps(selector)})).{property}")
    return tuple(int(part) for part in said.split("(")[1].rstrip(")").split(",")[:3])


def share(seen, colour, slack=6):
    """Of the points that have a colour, or nearly."""
    return sum(n for one, n in seen.items() if max(abs(a - b) for a, b in zip(one, colour)) <= slack) / sum(seen.values())


def inked(page, selector):
    """Whether a text can be seen: points of its own colour, and mostly others."""
    return 0.002 < share(page.colours(selector), colour_of(page, selector, "color"), 40) < 0.5


@pytest.mark.parametrize("looks", ("light", "dark", "phone"))
def test_the_picture_shows_what_the_page_has(tab, looks):
    """Screenshots, by what is in them: every text and bar is seen where it stands, in its colour."""
    page = tab(PHONE if looks == "phone" else WIDE, dark=looks == "dark", mobile=looks == "phone")
    ask(page, "The road went down to the river. " * 40 + QUESTION)
    for selector in (".message.user .body", ".message.assistant .body p", ".bar h1", "#model", ".note"):
        assert inked(page, selector), selector
    assert share(page.colours("#send", 12), colour_of(page, "#send", "color"), 40) > 0.05, "the arrow of the button"
    if looks == "phone":
        page.click("#memory-toggle")
    page.wait("document.querySelector('#rows .attention .live')?.getBoundingClientRect().width > 20", "drawn rows")
    time.sleep(0.4)  # bars move for a moment
    for selector in ("#plan-title", "#tokens", "#held", "#rows-title", "#plan-key .name", ".place-name"):
        assert inked(page, selector), selector
    # The bars of the plan: each piece as wide as its bytes, in its colour.
    # They are drawn anew now and then, so they are named by their places.
    pieces = page.run("[...document.querySelectorAll('#plan .piece')].map((e) => [`#plan .place:nth-child(${[...e.closest('#plan').children].indexOf(e.closest('.place')) + 1})"
                      " .piece:nth-child(${[...e.parentElement.children].indexOf(e) + 1})`, e.className, e.getBoundingClientRect().width])")
    plain = [selector for selector, classes, width in pieces if width >= 8 and "has-live" not in classes]
    assert len(plain) >= 2, pieces
    for selector in plain:
        assert share(page.colours(selector, 2), colour_of(page, selector)) > 0.9, selector
    # Rows a layer: of attention layers as long as they are, of others the mark of a state.
    live = colour_of(page, "#rows .attention .live", "fill")
    assert share(page.colours("#rows .attention .live", 3), live, 20) > 0.6
    track = page.colours("#rows .attention .track", 3)
    expected = page.run("['live', 'track'].map((c) => document.querySelector(`#rows .attention .${c}`).getBoundingClientRect().width)")
    assert abs(share(track, live, 20) - expected[0] / expected[1]) < 0.1, (expected, share(track, live, 20))
    ground = colour_of(page, "#rows .attention .track", "fill")
    assert share(page.colours("#rows .state .track", 3), ground, 6) < 0.1
    # Compaction: what is gone is hatched, between the two colours.
    page.run("document.querySelector('#budget').focus()")
    page.press("Home")
    page.click("#compact")
    page.wait("document.querySelector('#report').textContent.startsWith('Kept ')", "the report")
    page.wait("document.querySelector('#slots').textContent.startsWith('128 rows')", "the rows that are left")
    page.wait("document.getAnimations().length === 0", "bars to stand still")
    after = page.colours("#rows .attention .gone", 3)
    assert share(after, live, 20) < 0.3 and share(after, ground, 6) > 0.2 and len(after) > 8, "hatched"
    kept = page.colours("#kept")
    assert share(kept, ground, 6) > 0.2 and share(kept, ground, 6) < 0.99, "kept and dropped positions"


HOSTILE = ("<script>window.harmed = 1</script><img src=x onerror='window.harmed = 2'><iframe src='https://other.example'></iframe>"
           "[x](javascript:window.harmed=3) <svg onload=window.harmed=4> **<b onclick=window.harmed=5>b</b>** `<i>`\n\n```<u>\n</code></pre><script>window.harmed=6</script>\n```\n")


def test_text_stays_text(tab, server):
    """What a model or a user writes is shown as it was written and does nothing."""
    page = tab()
    ask(page, HOSTILE)
    assert page.run("document.querySelector('.message.user .body').textContent") == HOSTILE.strip()
    page.run("(async () => { const { renderMarkdown } = await import('/markdown.js'); const box = document.createElement('div');"
             f"box.id = 'box'; document.body.append(box); renderMarkdown(box, {json.dumps(HOSTILE)}); }})()")
    allowed = {"P", "STRONG", "CODE", "FIGURE", "FIGCAPTION", "PRE", "BUTTON"}
    assert set(page.run("[...document.querySelectorAll('#box *')].map((e) => e.tagName)")) <= allowed
    assert "<script>window.harmed = 1</script>" in page.run("document.querySelector('#box').textContent")
    assert page.run("window.harmed") is None


def test_the_policy_stops_what_the_page_would_not_do(tab):
    page = tab()
    refusals = page.run("""(async () => {
      const refused = [];
      document.addEventListener('securitypolicyviolation', (event) => refused.push(event.effectiveDirective));
      const image = document.createElement('img'); image.src = 'https://other.example/x.png'; document.body.append(image);
      await fetch('https://other.example/').catch(() => {});
      const style = document.createElement('style'); style.textContent = 'body { color: red }'; document.body.append(style);
      try { document.body.insertAdjacentHTML('beforeend', '<b onclick="1">x</b>'); } catch { refused.push('html'); }
      await new Promise((done) => setTimeout(done, 200));
      return refused; })()""")
    assert {"img-src", "connect-src", "style-src-elem"} <= set(refusals) and "html" in refusals, refusals
    page.requests[:] = [url for url in page.requests if "other.example" not in url]  # asked for by this test, and refused
    page.complaints.clear()


def test_markdown_is_shown(tab):
    page = tab()
    text = "# Title\n\nSome **bold**, *slanted* and `code`; 2 * 3 * 4, snake_case_name.\n\n1. one\n2. two\n   - deep\n\n> said\n\n```c\nint x = *p;\n```\n"
    text += "So:\n| a | b \\| c |\n|---|--:|\n| *1* | 2 | 3 |\n\nx | y\n"
    page.run("(async () => { const { renderMarkdown } = await import('/markdown.js'); const box = document.createElement('div'); box.className = 'body';"
             f"box.id = 'box'; document.body.append(box); const text = {json.dumps(text)};"
             "for (let n = 1; n <= text.length; ++n) renderMarkdown(box, text.slice(0, n)); })()")  # as it grows
    seen = page.run("[...document.querySelector('#box').children].map((e) => [e.tagName, e.innerText.replace(/\\s+/g, ' ').trim()])")
    assert seen[0] == ["H3", "Title"] and seen[1] == ["P", "Some bold, slanted and code; 2 * 3 * 4, snake_case_name."]
    assert [name for name, _ in seen] == ["H3", "P", "OL", "BLOCKQUOTE", "FIGURE", "P", "DIV", "P"]
    assert seen[-3:] == [["P", "So:"], ["DIV", "a b | c 1 2"], ["P", "x | y"]]
    cells = page.run("[...document.querySelectorAll('#box :is(th, td)')].map((e) => [e.tagName, e.className, e.innerHTML])")
    assert cells == [["TH", "", "a"], ["TH", "right", "b | c"], ["TD", "", "<em>1</em>"], ["TD", "right", "2"]]
    assert page.run("[...document.querySelectorAll('#box strong, #box em, #box p code, #box li li')].map((e) => e.textContent)") == ["bold", "slanted", "code", "deep", "1"]
    assert page.run("document.querySelector('#box pre').textContent") == "int x = *p;"


def test_a_reload_keeps_the_conversation(tab, server):
    page = tab()
    ask(page)
    page.open(server.url + "/")
    page.wait("document.querySelectorAll('.message').length === 2", "the messages")
    assert texts(page, "assistant") == [ANSWER]


LONG = "The road went down to the river. " * 900


def test_a_message_that_is_too_long_harms_no_conversation(tab, server):
    page = tab()
    ask(page)
    ask(page, LONG)
    refusal = page.run("document.querySelector('.message.user:last-child .error').textContent")
    assert re.match(r"the prompt has( at least)? \d+ tokens, the context \d+: none would be left for an answer", refusal), refusal
    ask(page, "The code of olive is 88752. What is the code of olive?")
    assert texts(page, "assistant") == [ANSWER, "The code of olive is 88752."], "the next question is answered"
    page.open(server.url + "/")
    page.wait("document.querySelectorAll('.message.user .error').length === 1", "the refusal to be remembered")
    press_in(page, "Remove", 1)
    page.wait("document.querySelectorAll('.message').length === 4", "it to be taken out")
    press_in(page, "Remove", 0)
    page.wait("document.querySelectorAll('.message').length === 2", "a question goes with its answer")
    assert texts(page, "assistant") == ["The code of olive is 88752."]
    page.complaints[:] = [text for text in page.complaints if "400" not in text]


def test_how_far_a_prompt_is_read_is_shown_beside_the_answer(tab):
    with Server("tiny-qwen35-q8_0.gguf", "--chunk", "16", "--prefill-chunk", "16") as slow:
        page = tab(at=slow)
        page.run("(() => { window.seen = []; new MutationObserver(() => { const line = document.querySelector('[aria-busy] .reading');"
                 "if (line) seen.push([line.textContent.replace(/[^ -~]/g, ''), line.firstChild.value, line.firstChild.max]); })"
                 ".observe(document.querySelector('#log'), {subtree: true, childList: true, characterData: true}); })()")
        # The page looks more often than it does of its own accord, as fixtures read fast.
        page.run("(() => { window.often = setInterval(() => document.dispatchEvent(new Event('visibilitychange')), 100); })()")
        ask(page, "The road went down to the river. " * 250 + QUESTION, wait=False)
        page.wait("document.querySelector('#stop').hidden && !document.querySelector('[aria-busy]')", "the answer to end", seconds=150)
        page.run("clearInterval(window.often)")
        seen = page.run("seen")
        assert seen, "no progress was shown"
        for text, value, most in seen:
            assert re.fullmatch(r"Reading: [\d,]+ of [\d,]+ tokens", text) and 0 <= value <= most and most > 1600, (text, value, most)
        assert page.run("document.querySelector('.reading')") is None
        page.close()


def names_of_chats(page):
    return page.run("[...document.querySelectorAll('#chats-list .open')].map((e) => e.firstChild.textContent)")


def press_in_chats(page, label):
    page.run(f"document.querySelector('#chats-list [aria-label^={json.dumps(label)}]').classList.add('chosen')")
    page.click(".chosen")


def test_conversations_are_kept_exported_and_deleted(tab, server):
    page = tab()
    ask(page)
    page.click("#new")
    page.wait("document.querySelectorAll('.message').length === 0", "a new conversation, without a question")
    ask(page, "The code of olive is 88752. What is the code of olive?")
    page.open(server.url + "/")
    page.click("#chats-open")
    page.wait("document.querySelectorAll('#chats-list li').length === 2", "both conversations")
    assert names_of_chats(page) == ["The code of olive is 88752. What is the code of olive?", QUESTION]
    page.run("window.saved = []; const make = URL.createObjectURL; URL.createObjectURL = (blob) => { blob.text().then((t) => saved.push(t)); return make.call(URL, blob); };"
             "HTMLAnchorElement.prototype.click = function () { saved.push(this.download); };")
    press_in_chats(page, "Export " + QUESTION)
    page.wait("saved.length === 2", "the file")
    assert set(page.run("saved")) == {"The-code-of-ember-is-97697-What-is-the-c.md", f"# {QUESTION}\n\n## You\n\n{QUESTION}\n\n## The model\n\n{ANSWER}\n"}
    page.run("document.querySelectorAll('#chats-list .open')[1].classList.add('other')")
    page.click(".other")
    page.wait("document.querySelector('.message.assistant .body')?.innerText.trim() === " + json.dumps(ANSWER), "the first conversation")
    page.click("#chats-open")
    press_in_chats(page, "Delete The code of olive")
    page.wait("document.querySelector('#sure').open", "the question whether to delete")
    page.click("#sure-no")
    page.wait("!document.querySelector('#sure').open", "the question to go")
    assert len(names_of_chats(page)) == 2, "Cancel deletes nothing"
    press_in_chats(page, "Delete The code of olive")
    page.click("#sure-yes")
    page.wait("document.querySelectorAll('#chats-list li').length === 1", "one to be deleted")
    assert names_of_chats(page) == [QUESTION] and texts(page, "assistant") == [ANSWER]


def test_a_new_chat_asks_where_something_would_be_lost(tab, server):
    page = tab()
    page.run("Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }")
    ask(page)
    page.click("#new")
    page.wait("document.querySelector('#sure').open", "the question")
    assert "will be lost" in page.run("document.querySelector('#sure-text').textContent")
    page.click("#sure-no")
    page.wait("!document.querySelector('#sure').open", "the question to go")
    assert texts(page, "assistant") == [ANSWER]
    page.click("#new")
    page.click("#sure-yes")
    page.wait("document.querySelectorAll('.message').length === 0", "an empty conversation")
    with SlowRelay(server) as relay:
        writing = tab(at=relay)
        ask(writing, ENDLESS_QUESTION, wait=False)
        writing.wait("document.querySelector('.message.assistant:last-child .body')?.innerText.trim()", "the first words")
        writing.click("#new")
        writing.wait("document.querySelector('#sure').open", "the question")
        assert "cut off" in writing.run("document.querySelector('#sure-text').textContent")
        writing.click("#sure-yes")
        writing.wait("document.querySelectorAll('.message').length === 0", "an empty conversation")
        writing.click("#chats-open")
        writing.wait("document.querySelectorAll('#chats-list li').length === 1", "the one that was left")
        writing.close()
        server.wait_idle()


def drop(page, name, bytes):
    """A file, let go over the conversation."""
    page.run(f"(() => {{ const data = new DataTransfer(); data.items.add(new File([new Uint8Array({list(bytes)})], {json.dumps(name)}));"
             "for (const type of ['dragenter', 'dragover', 'drop'])"
             "document.querySelector('#chat').dispatchEvent(new DragEvent(type, {dataTransfer: data, bubbles: true, cancelable: true})); })()")


def test_files_are_dropped_in_as_text(tab, server):
    page = tab()
    drop(page, "codes.txt", b"The code of ember is 97697.\r\n")
    page.wait("document.querySelector('#files').innerText.includes('codes.txt')", "the file beside the message")
    drop(page, "picture.png", b"\x89PNG\r\n\x1a\n\0\0")
    page.wait("document.querySelector('#sure').open", "the refusal")
    assert page.run("document.querySelector('#sure-text').textContent") == "picture.png is not text."
    page.click("#sure-yes")
    drop(page, "other.txt", b"nothing")
    page.wait("document.querySelectorAll('#files li').length === 2", "the other file")
    page.click("#files li:nth-child(2) button")
    page.wait("document.querySelectorAll('#files li').length === 1", "it to be left out")
    page.run("(() => { const real = window.fetch; window.fetch = (path, options) => { if (options?.body) window.sent = JSON.parse(options.body); return real(path, options); }; })()")
    ask(page, "What is the code of ember?")
    assert page.run("sent.messages[0].content") == "What is the code of ember?\n\nFile codes.txt:\n```\nThe code of ember is 97697.\n```"
    assert page.run("document.querySelector('.message.user details summary').textContent") == "codes.txt"
    assert page.run("document.querySelector('.message.user details').open") is False
    assert page.run("document.querySelector('#files').hidden")


CALLS = ('{"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "lookup", "arguments": "{\\"name\\": "}}]}}]}',
         '{"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "\\"ember\\"}"}}]}}]}',
         '{"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}', "[DONE]")


def test_calls_of_functions_are_shown_and_answered(tab):
    """The answer with the call is made up here: the fixtures make none of their own accord."""
    page = tab()
    page.click("#settings-open")
    page.run("document.querySelector('#functions').value = '[{'")
    page.click("#settings-form [value=save]")
    assert "not JSON" in page.run("document.querySelector('#settings-error').textContent") and page.run("document.querySelector('#settings').open")
    tools = [{"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}]
    page.run(f"document.querySelector('#functions').value = {json.dumps(json.dumps(tools))}")
    page.click("#settings-form [value=save]")
    stream = "".join(f"data: {event}\n\n" for event in CALLS)
    page.run("(() => { const real = window.fetch; window.sent = []; window.fetch = (path, options) => { if (!options?.body) return real(path, options);"
             f"sent.push(JSON.parse(options.body)); if (sent.length > 1) return real(path, {{...options, body: JSON.stringify({{...sent[1], tools: undefined, messages: [{{role: 'user', content: {json.dumps(QUESTION)}}}]}})}});"
             f"return Promise.resolve(new Response({json.dumps(stream)})); }}; }})()")
    ask(page)
    assert page.run("sent[0].tools") == tools
    assert page.run("[...document.querySelectorAll('.call')].map((e) => [e.open, e.firstChild.textContent, e.lastChild.textContent])") == [
        [False, "Calls lookup", '{\n  "name": "ember"\n}']]
    page.click(".message.assistant textarea")
    page.type("97697")
    page.click(".message.assistant form button")
    page.wait("document.querySelectorAll('.message').length === 4", "the result and the next answer")
    done(page)
    assert page.run("sent[1].messages.slice(1)") == [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"name": "ember"}'}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "97697"}]
    assert texts(page, "assistant")[-1] == ANSWER


def test_a_key_is_asked_for_and_used(tab):
    with Server("tiny-qwen35-q8_0.gguf", "--api-key", "sesame") as locked:
        page = tab(at=locked)
        page.wait("document.querySelector('#model').className.includes('error')", "the refusal")
        assert "API key" in page.run("document.querySelector('#model').textContent")
        page.click("#settings-open")
        page.click("#key")
        page.type("sesame")
        page.press("Enter")
        page.wait("!document.querySelector('#model').className.includes('error')", "to be let in")
        ask(page)
        assert texts(page, "assistant") == [ANSWER]
        page.close()
        page.complaints[:] = [text for text in page.complaints if "401" not in text]


def test_a_server_that_goes_away_is_said(tab, browser):
    with Server("tiny-qwen35-q8_0.gguf") as passing:
        page = tab(at=passing)
        ask(page)
        passing.stop()
        ask(page, "Is anybody there?")
        assert "cannot be reached" in page.run("document.querySelector('.message:last-child .error').textContent")
        assert page.run("[...document.querySelectorAll('.message:last-child button')].map((b) => b.textContent)")[0] == "Try again"
        page.close()
        # An answer that was under way when the server stopped ends short, or its connection is reset.
        gone = re.compile("ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_CONTENT_LENGTH_MISMATCH")
        page.complaints[:] = [text for text in page.complaints if not gone.search(text)]


def test_pictures_for_whoever_wants_to_look(tab):
    """Writes nothing unless SHARPI_PICTURES names a folder."""
    folder = os.environ.get("SHARPI_PICTURES")
    if not folder:
        pytest.skip("SHARPI_PICTURES names no folder")
    for name, size, dark in (("wide", WIDE, False), ("dark", WIDE, True), ("phone", PHONE, False)):
        page = tab(size, dark=dark, mobile=name == "phone")
        ask(page)
        time.sleep(0.5)
        page.picture(os.path.join(folder, name + ".png"))
