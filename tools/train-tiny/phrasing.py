"""Turns a corpus entry into many differently worded questions: templates first, then noise as people type it.

An entry names its subjects (`what`, `how`, `why`), deeds (`do`), pairs (`vs`), abilities (`yes`) and hand-written
questions (`ask`). All randomness comes from the `random.Random` that the caller passes in.
"""

import functools
import math
import re

TEMPLATES = {
    "what": """what is {}|what is {}|what's {}|what are {}|what does {} mean|define {}|explain {}|explain {} to me|tell me about {}|{}|meaning of {}
can you explain {}|describe {}|give me a definition of {}|i don't understand {}|what do people mean by {}|{} explained
what exactly is {}|what is meant by {}|help me understand {}|i keep hearing about {}, what is it|teach me {}|talk about {}
what do you know about {}|how would you describe {}|how would you define {}|in a nutshell, what is {}|summary of {}|introduction to {}
do you know what {} is|{}: what is it|info on {}|what is this {} thing|what does the term {} stand for|{} definition
someone mentioned {}, what is that|i read about {} and would like to know more|could you say something about {}
what should i know about {}|what is the meaning of {}|what is the idea of {}|what is the idea behind {}|how do you explain {} to a beginner|anything on {}
explain the concept of {}|explain what {} is|tell me what {} is|i want to understand {}|i want to learn about {}|what can you tell me about {}|{} in simple words
what do you call {}|who or what is {}|what the heck is {}|please clarify {}|give an overview of {}|what role does {} play|what is {} about|elaborate on {}|a word on {}
what does {} do|what is {} for|what is {} used for|and what is {}|and {}|the purpose of {}|could you tell me what {} is|what's the definition of {}|what's {} good for|how would you summarise {}|{}: what's that supposed to be|what is {} supposed to be|give me a plain description of {}|what happens in {}|i saw the word {}, what is it|sum up {} for me|what would you say {} is|{}, in plain words|{}, what's that|i have a question about {}|what kind of thing is {}|{} please|say something about {}|let's talk about {}|what would {} be|i've heard of {}, what is it""",
    "how": """how does {} work|how do {} work|how does {} function|explain how {} works|what is the mechanism behind {}|how is {} done
how does {} actually work|walk me through {}|what happens in {}|describe how {} works|tell me how {} works|what goes on during {}
how does {} operate|how is {} implemented|inner workings of {}|the mechanics of {}|can you explain how {} works|what makes {} work|how {} works""",
    "why": """why {}|why use {}|why do we need {}|what is the point of {}|what is {} good for|what are the benefits of {}|why does {} matter
is {} useful|advantages of {}|what do i gain from {}|why is {} important|what's the use of {}|reasons for {}|why would i want {}
what is the purpose of {}|why bother with {}|when does {} help|does {} help|what problem does {} solve|what would i lose without {}|what advantage does {} have|what does {} buy me|who needs {}|why should i care about {}|is {} worth it|when should i use {}|the purpose of {}""",
    "do": """how do i {}|how do i {}|how can i {}|how to {}|how to {}|what's the way to {}|i want to {}|is it possible to {}|can i {}|show me how to {}|i need to {}
what command do i use to {}|steps to {}|help me {}|how would one {}|can you tell me how to {}|how do you {}|how does one {}|how should i {}
does loquent let me {}|i would like to {}|what do i type to {}|what's the easiest way to {}|is there a way to {}|any way to {}|trying to {}|what do i have to do to {}|what must i do if i want to {}|i wonder how to {}|where do i {}|is there a command to {}|i'd love to {}, how
which option lets me {}|what do i need to do to {}|instructions to {}|give me an example of how to {}|i'm trying to {}, how|what if i want to {}|the best way to {}|could you help me {}""",
    "vs": """{} or {}|{} or {}|{} vs {}|{} versus {}|difference between {} and {}|what is the difference between {} and {}|compare {} and {}|compare {} with {}
should i use {} or {}|which is better, {} or {}|is {} better than {}|how does {} differ from {}|{} compared to {}|{} against {}
how is {} different from {}|are {} and {} the same|what distinguishes {} from {}|is {} the same as {}|should i pick {} or {}|which should i choose, {} or {}
do i want {} or {}|when {} and when {}|what is better: {} or {}|explain the difference between {} and {}|{} and {}, what's the difference|contrast {} and {}""",
    "yes": """does loquent support {}|is there support for {}|can loquent do {}|does it support {}|do you support {}|is {} supported|loquent {}|does loquent have {}
can i use {} with loquent|what about {}|is {} available|does the server support {}|does loquent offer {}|can loquent handle {}|do you have {}|is there {}|how about {}|does loquent come with {}|is {} possible with loquent|{} support""",
}
TEMPLATES = {family: [t.strip() for t in re.split(r"[|\n]", text)] for family, text in TEMPLATES.items()}

OPENERS = """hi, |hey, |hello, |hey |please |quick question: |so |so, |ok, |ok |well, |um, |i was wondering, |could you tell me, |sorry, but |hello! |one more thing: |next question: |and |and |also, |now |just curious, |
tell me, |question: |hmm, |right, |alright, |thanks. |great, |listen, |yo |good morning, |i have a question: |another one: |then |but |cool, |got it. |i see. |for my homework: |a friend asked me: |wait, |maybe you know: |dear model, |
pls |oh and |last question: |first question: |not sure, but |i'm new here. |let me ask: |honestly, |excuse me, |my boss asks: |i forgot: |i'm reading about serving. |we run a chatbot. |i have read the readme. |i am building a chat app. |that was good. |interesting. |i'm a beginner. |sorry to bother you. |no, |yes, |another thing. |fine, |remind me, |i'd like to know: |
i run a small shop. |my colleague showed me this. |i just installed this on my laptop. |we are a team of five. |i have no background in this. |i tried to read up on it but got lost. |
before we start: |if i may ask, |out of curiosity, |be honest: |one thing i never understood: |i was told to ask you: |for a presentation: |for my notes: |serious question: |stupid question: |silly question, |simple question: |random question: |
ok here's my question: |so here is my problem: |first of all, |to begin with, |by the way, |btw |btw, |hey bot, |hey loquent, |loquent, |dear loquent, |hi again, |me again. |back again. |good evening, |morning! |thanks for that. |
thank you, but |great stuff. |ha, nice. |lol ok |nice one. |i don't get it. |ok whatever, |never mind. |no idea why, but |actually, |basically, |i mean, |anyway, |besides, |speaking of which, |apart from that, |in case you know: |i've been wondering, |
you know what? |guess what, |mind telling me |would you mind telling me |do you happen to know |any chance you know |can anyone tell me |somebody asked me |i need to know |i really need to know |it would help me to know |quickly: |fast answer please: |it's urgent: |no rush, but |"""
OPENERS = OPENERS.replace("\n", "").split("|")
CLOSERS = """ please| thanks| in simple terms| briefly| for a beginner| in one sentence| exactly| actually| again| if you don't mind| thx| pls| in short| in plain words| in a few words| then| really| here| though|
, please|, thanks|, i'm curious| in general| by the way| at all| for me| today| these days| in practice|, briefly|? thanks|? please explain|, any idea|, do you know| anyway| precisely| or so|, if i may ask| by any chance| or not| lol| haha| bro| man| mate| buddy| dear| asap|, it's urgent|, i'm new to this|, i'm no expert|, can you tell me|, tell me|, help|!! thanks| thank you| ty| :)| 🙂|, right|, yes or no| please and thank you|, be honest|, seriously|, i wonder| nowadays| from scratch| step by step| for dummies| in a nutshell|, my friend|, loquent| for a friend""".replace("\n", "").split("|")
# Words that may stand for each other in a question; each group is one line.
SYNONYMS = """what is|what's|whats|wat is|what exactly is|define|describe|explain|tell me about
explain|describe|clarify|outline|illustrate|shed light on
tell me|let me know|say|inform me|show me
how do i|how do we|how can i|how would i|how could i|how to|how should i|how does one|how might i|what must i do to
i want to|i wish to|i'd like to|i would like to|we want to|i need to|i have to|let me|i'm trying to
difference|distinction|differences|diff|contrast
better|preferable|superior|best|wiser|more suitable
server|service|backend|machine|daemon
request|query|call|job|prompt
requests|queries|calls|jobs|prompts
answer|reply|response|output|text|completion|generation
answers|replies|responses|outputs|completions
you|u|ya
are|r
client|reader|user|customer|consumer|app
clients|readers|users|customers|people|apps
mean|stand for|signify|denote|refer to
loquent|Loquent|this server|this tool|the loquent server|your server
set|change|configure|adjust|choose|specify|pick|select|tweak
start|launch|run|begin|fire up|boot|bring up|kick off
stop|halt|end|finish|quit|cease|abort|terminate|cancel
happens|occurs|goes on|takes place|is done
important|relevant|useful|key|essential|necessary
long|big|huge|large|enormous|giant|lengthy
small|tiny|little|mini
fast|quick|rapid|speedy
slow|sluggish|laggy|crawling
many|several|lots of|multiple|numerous
show|display|print|give|present|render
see|view|look at|find|check|inspect|watch
use|utilise|employ|apply|work with|run with
send|transmit|deliver|transfer|ship|push
sent|transmitted|delivered|transferred|shipped
lost|dropped|missing|gone|vanished|swallowed
loss|losses|dropping
network|connection|link|line|internet|net
connection|link|line|session
wifi|wi-fi|wireless|wlan
mobile data|4g|5g|lte|cellular|mobile network
computer|machine|pc|laptop|box|desktop|device
page|site|website|screen
word|phrase|text|term
words|text|letters|characters
freeze|hang|stall|stick|lag|pause|stutter|get stuck|block
model|llm|language model|ai model|network
limit|restrict|cap|bound|reduce
memory|ram|space|storage
allow|permit|let|enable
support|offer|have|provide|include|handle|understand
supported|available|possible|offered|there|included
write|generate|produce|create|make|compose
written|generated|produced|made|created
tell|say|report|indicate|show
arrive|come|appear|show up|turn up|get here
file|files
find out|learn|know|determine|discover
need|require|want|have to have
why|how come|for what reason|what is the reason that
get|obtain|receive|fetch|retrieve
download|fetch|pull|get|grab
turn on|enable|activate|switch on
turn off|disable|deactivate|switch off
chosen|picked|selected|determined
kept|stored|saved|held
open|visit|go to|access
wait|stay|queue|hold on
waiting|queued|pending
default|standard|preset|normal
parameter|option|field|setting|flag|argument
option|flag|switch|setting|parameter
command|subcommand|program|tool
example|sample|snippet|demo
error|failure|problem|fault
error message|error text|error response
measure|quantify|determine|assess|gauge
called|named|known as
is it possible to|can i|could i|may i|am i able to
does|will|would|can|could|might
can|could|may
overloaded|flooded|too busy|swamped|full
together|at once|simultaneously|in parallel|at the same time|concurrently
at once|immediately|simultaneously|together
same|identical|equal
again|once more|repeatedly|another time
broken|bad|poor|faulty|damaged
bad network|poor connection|lossy network|unreliable line|flaky connection|shaky wifi
purpose|point|use|goal|aim|role
work|function|operate|go
chat|conversation|talk|dialogue
split|cut|divide|break up
interrupted|broken|cut off|dropped|disconnected
reduce|lower|decrease|shrink|cut
increase|raise|improve|boost|grow
secure|protect|safeguard|lock down
python|Python
free|gratis|free of charge
people|users|persons|folks
maximum|largest|max|highest|upper limit of
random|unpredictable|creative|wild
repeat|say again|duplicate
compare|contrast|weigh
kind|sort|type
kinds|sorts|types"""
SYNONYMS = [line.split("|") for line in SYNONYMS.split("\n")]
GROUPS_OF = {}
for group in SYNONYMS:
    for member in group:
        GROUPS_OF.setdefault(member.lower(), []).append(group)
SYNONYM_EXPRESSION = re.compile(r"\b(" + "|".join(sorted((re.escape(m) for m in GROUPS_OF), key=len, reverse=True)) + r")\b", re.IGNORECASE)
FUNCTION_WORDS = {"a", "an", "the", "is", "are", "does", "do", "of", "to", "it", "me", "in", "for", "i", "you", "that", "and", "can", "be"}


def filled_frame(frame, slots, rng):
    """The frame with a number in place of each {n}, and one of the slot's words in place of any other {name}."""

    def fill(match):
        if match.group(1) == "n":
            return str(rng.randrange(rng.choice([10, 100, 1000])))
        return rng.choice(slots[match.group(1)])

    return re.sub(r"\{(\w+)\}", fill, frame)


ALTERNATIVES = re.compile(r"\[([^\[\]/]*(?:/[^\[\]/]*)+)\]")


def chosen_alternatives(pattern, rng):
    """The pattern with one of the alternatives in place of each [a/b/]; the empty one leaves no double space."""
    text = ALTERNATIVES.sub(lambda match: rng.choice(match.group(1).split("/")), pattern)
    return re.sub(r" +(?=[ ,!?.]|$)", "", text).strip(" ,") or pattern


@functools.cache
def breadth(pattern):
    """How much more often a pattern with many variants is drawn than one without alternatives."""
    variants = 1
    for match in ALTERNATIVES.finditer(pattern):
        variants *= match.group(1).count("/") + 1
    return 1 + math.log2(variants)


def varied_question(patterns, rng):
    """One of the patterns, with its alternatives chosen."""
    return chosen_alternatives(rng.choices(patterns, [breadth(pattern) for pattern in patterns])[0], rng)


def templated(entry, family, rng):
    """One question of the given template family for the entry, without noise."""
    if family == "ask":
        return rng.choice(entry["ask"])
    if family == "varied":
        return filled_frame(varied_question(entry["varied"], rng), entry.get("slots", {}), rng)
    if family == "frames":
        return filled_frame(rng.choice(entry["frames"]), entry.get("slots", {}), rng)
    template = rng.choice(TEMPLATES[family])
    if family == "vs":
        pair = list(rng.choice(entry["vs"]))
        rng.shuffle(pair)
        return template.format(*pair)
    return template.format(rng.choice(entry[family]))


# Hand-written questions are worth more than one family: they carry wordings that no template has.
FAMILY_WEIGHTS = {"what": 2.0, "how": 1.0, "why": 1.0, "do": 2.0, "vs": 2.0, "yes": 1.0, "ask": 8.0, "varied": 8.0, "frames": 16.0}


def question(entry, rng, noise=1.0, refused=lambda text: False):
    """A random question whose answer is the entry's, noisy with probability `noise`.

    One with alternatives is drawn again while it is `refused`.
    """
    families = [f for f in FAMILY_WEIGHTS if entry.get(f)]
    weights = [FAMILY_WEIGHTS[f] for f in families]
    family = rng.choices(families, weights)[0]
    text = templated(entry, family, rng)
    while family == "varied" and refused(text):
        text = templated(entry, family, rng)
    if rng.random() >= noise:
        return add_case(add_ending(text, rng), rng)
    if family == "ask" and entry["section"] != "smalltalk" and not entry.get("plain"):
        text = dress(text, rng)
    return add_noise(text, rng)


CARRIERS = """{}|what about {}|{}, how does that work|a question about {}|i'd like to know about {}|tell me about {}|{}, please explain|can you help me with {}|
something on {}|{}: any advice|my topic is {}|{}, what then|what do you say to {}|info about {}|{}, is that possible|explain {}""".replace("\n", "").split("|")


def dress(text, rng):
    """A hand-written question varied further: words left out, or a keyword phrase put into a sentence."""
    short = len(text.split(" ")) <= 4
    if not short and rng.random() < 0.35:
        return thin_out(text, rng, 0.18)
    if short and rng.random() < 0.5:
        return rng.choice(CARRIERS).format(text)
    return text


def misspell(text, rng):
    """One letter swapped, dropped, doubled or replaced in one longer word."""
    spots = list(re.finditer(r"[A-Za-z]{4,}", text))
    if not spots:
        return text
    word = rng.choice(spots)
    at = word.start() + rng.randrange(1, len(word.group()) - 1)
    kind = rng.randrange(4)
    if kind == 0:
        return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    if kind == 1:
        return text[:at] + text[at + 1 :]
    if kind == 2:
        return text[:at] + text[at] + text[at:]
    return text[:at] + rng.choice("abcdefghijklmnopqrstuvwxyz") + text[at + 1 :]


def drop_word(text, rng):
    """One small function word left out, if there is one and enough words remain."""
    words = text.split(" ")
    small = [i for i, w in enumerate(words) if w.lower() in FUNCTION_WORDS]
    if len(words) < 4 or not small:
        return text
    del words[rng.choice(small)]
    return " ".join(words)


def swap_words(text, rng, chance):
    """Each word or phrase that has synonyms replaced by one of them with probability `chance`."""

    def replace(match):
        if rng.random() >= chance:
            return match.group()
        return rng.choice(rng.choice(GROUPS_OF[match.group().lower()]))

    return SYNONYM_EXPRESSION.sub(replace, text)


def thin_out(text, rng, chance):
    """Each word left out with probability `chance`, but at least two stay: the order and grammar of words matter little."""
    words = text.split(" ")
    kept = [w for w in words if rng.random() >= chance]
    return " ".join(kept) if len(kept) >= 2 else text


def add_ending(text, rng):
    draw = rng.random()
    if text[-1] in ".?!" or draw < 0.4:
        return text
    if draw < 0.9:
        return text + "?"
    return text + rng.choice(["??", ".", " ?", "!", "...", "?!", ":"])


def add_case(text, rng):
    draw = rng.random()
    if draw < 0.5:
        return text[0].upper() + text[1:]
    if draw < 0.85:
        return text.lower()
    if draw < 0.88:
        return text.upper()
    return text.title() if draw < 0.9 else text


def add_noise(text, rng):
    """Openers, closers, synonyms, dropped words, typos, case and punctuation, each by chance."""
    if rng.random() < 0.4:
        text = swap_words(text, rng, 0.3)
    if rng.random() < 0.12:
        text = drop_word(text, rng)
    if rng.random() < 0.14:
        text = text.rstrip("?.!") + rng.choice(CLOSERS)
    if rng.random() < 0.2:
        text = rng.choice(OPENERS) + text
    if rng.random() < 0.12:
        text = misspell(text, rng)
    if rng.random() < 0.03:
        text = misspell(text, rng)
    return add_case(add_ending(text.strip(), rng), rng)


def normalised(text):
    """Lower case, letters and digits only, single spaces: the form in which questions are compared."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower().replace("'", "")))
