"""The laws: each is a function of what was seen, and yields what breaks it, with the limit of the documents that
explains it, if one does: such a limit is no fault, and is counted by its name.
"""

import dataclasses

from .cluster import GRACE_S
from .plan import REFUSED
from .seen import EPOCH, LOSSES

#: How far a replica that reads another one's log may be behind, on a busy machine.
MIRROR_S = 1.0
#: Within which a replica that reaches the store again knows what the store knows.
SETTLE_S = 6.0
#: Within which owners that live have written again what the store has lost.
REWRITE_S = 8.0

#: What a failover may lose: what was written within so long before it.
LAG_S = 5.0

#: What `loquent connect` says when no replica knows an answer.
GONE = "does not have this answer any more"

#: Limits, with the page that states each.
LIMITS = {
    "lost with its owner": "docs/replicas.md#when-something-fails",
    "never in the store": "docs/replicas.md#when-something-fails",
    "objects lost by the store": "docs/replicas.md#which-store",
    "not in the store yet": "docs/replicas.md#what-the-store-holds-of-an-answer",
    "place of an old epoch": "docs/replicas.md#what-the-store-holds-of-an-answer",
    "owner that does not know its successor": "docs/scripts-model.md#known-limits",
    "stop lost by a failover": "docs/scripts-model.md#known-limits",
    "stop not known without the store": "docs/replicas.md#when-something-fails",
    "nobody with the same settings": "docs/replicas.md#when-something-fails",
}


@dataclasses.dataclass
class Broken:
    """A law that is broken: how, by which lines of the history, and the limit that explains it, if one does."""

    law: str
    answer: str
    what: str
    lines: list
    limit: str = None


def difference(text, whole):
    """Where two texts part, and how they go on."""
    at = next((i for i, (one, other) in enumerate(zip(text, whole)) if one != other), min(len(text), len(whole)))
    return f"at character {at}: {text[at:at + 30]!r} and {whole[at:at + 30]!r}"


def one_text(seen):
    """What is shown of an answer is the beginning of one text, whoever reads it, over whichever transport."""
    for answer in seen.answers.values():
        whole = answer.whole()
        for visit in (visit for reading in answer.readings for visit in reading.visits):
            begins, text = visit["chars"], visit["text"]
            if whole[begins:begins + len(text)] != text:
                what = f"reader {visit['r']} has another text {difference(text, whole[begins:])}"
                yield Broken("one text", answer.a, what, visit.lines)
        for poll in answer.polls:
            if poll.status == 200 and not whole.startswith(poll["text"]):
                what = f"a poll has another text {difference(poll['text'], whole)}"
                yield Broken("one text", answer.a, what, poll.lines)


def one_byte(seen):
    """An epoch and an offset name one byte: at one place, all have read the same number of characters."""
    for answer in seen.answers.values():
        places = {}
        for reading in answer.readings:
            for visit in reading.visits:
                for place, chars in visit["places"] or []:
                    first, where = places.setdefault(place, (chars, visit))
                    if first != chars:
                        what = f"{named(place)} is behind {first} characters and behind {chars}"
                        yield Broken("one byte", answer.a, what, where.lines + visit.lines)


def named(place):
    return f"offset {place % EPOCH} of epoch {place // EPOCH}"


def done_if_whole(seen):
    """An answer is called complete only if it is whole, and no stream ends cleanly before."""
    for answer in seen.answers.values():
        whole = answer.whole()
        done = [reading for reading in answer.readings if reading.is_done]
        finishes = {visit["finish"] for reading in done for visit in reading.visits if visit["finish"]}
        for reading in answer.readings:
            last = reading.visits[-1]
            if reading.is_done and len(reading.text) < len(whole):
                what = f"reader {reading.r} was told that {len(reading.text)} of {len(whole)} characters are all"
                yield Broken("done if whole", answer.a, what, last.lines)
            if last["end"] == "clean":
                what = f"a stream of reader {reading.r} ended cleanly, without its end"
                yield Broken("done if whole", answer.a, what, last.lines)
        if len(finishes) > 1:
            what = f"it ended in several ways: {', '.join(sorted(finishes))}"
            yield Broken("done if whole", answer.a, what, [n for reading in done for n in reading.visits[-1].lines])


def final(seen):
    """A response that was complete stays as it was, at every replica, and one that has failed does not go on."""
    for answer in seen.answers.values():
        if answer.asked["api"] == "responses":
            yield from called_failed(answer)
        polls = [poll for poll in answer.polls if poll.status == 200]
        complete = next((poll for poll in polls if poll["state"] in ("completed", "incomplete")), None)
        for poll in polls:
            if complete and poll.t0 > complete.t1 and as_seen(poll) != as_seen(complete):
                what = f"it was {complete['state']}, and then {poll['state']}, of {len(poll['text'])} characters"
                limit = why_it_is_lost(seen, answer, poll.t1)
                yield Broken("final", answer.a, what, complete.lines + poll.lines, limit)


def as_seen(poll):
    return poll["state"], poll["usage"], poll["text"]


def called_failed(answer):
    failed = next((visit for visit in answer.visits if visit["end"] == "error"), None)
    later = [poll for poll in answer.polls if failed and poll.status == 200 and poll.t0 > failed.t1]
    if later and later[-1]["state"] != "failed":
        what = f"a stream said that it has failed ({failed['error'][-200:]}), and it is {later[-1]['state']}"
        yield Broken("final", answer.a, what, failed.lines + later[-1].lines)


def why_it_is_lost(seen, answer, t):
    """The limit, if the store has lost anything since the answer was asked for."""
    return "objects lost by the store" if seen.during(LOSSES, answer.asked.t0, t) else None


def one_owner(seen):
    """An epoch has one owner; epochs and fences only grow, unless the store has lost something."""
    for answer in seen.answers.values():
        owners, before = {}, None
        # One that was given up, or is not in the store, has none.
        for event in (event for event in answer.owners if event["owner"]):
            epochs = event["epochs"] or ""
            first = owners.setdefault(epochs, event)
            lines = [first["n"], event["n"]]
            if first["owner"] != event["owner"]:
                what = f"epoch {epochs.rpartition(',')[2] or 0} has two owners"
                yield Broken("one owner", answer.a, what, lines)
            if before and not seen.during(LOSSES, before["t"] - 1, event["t"]):
                lines = [before["n"], event["n"]]
                if not epochs.startswith(before["epochs"] or ""):
                    what = f"the epochs {before['epochs']} became {epochs}"
                    yield Broken("one owner", answer.a, what, lines)
                elif is_stolen(before, event):
                    yield Broken("one owner", answer.a, "another owner has no higher fence", lines)
            before = event


def is_stolen(before, event):
    return before["owner"] != event["owner"] and int(event["fence"] or 0) <= int(before["fence"] or 0)


def deletes_are_final(seen):
    """What a DELETE has confirmed to end is not read any more."""
    for answer in seen.answers.values():
        stopped = answer.stopped_t
        if stopped is None:
            continue
        for visit in [*answer.visits, *answer.looks]:
            if visit.status != 200 or not visit.ended:
                continue
            if visit.t0 > stopped + MIRROR_S:
                until = visit.t0
            elif visit["last_t"] is not None and visit.t0 + visit["last_t"] > stopped + SETTLE_S:
                until = visit.t0 + visit["last_t"]
            else:
                continue
            what = f"it was stopped at {stopped} s, and replica {visit['replica']} served it at {until:.3f} s"
            yield Broken("deletes are final", answer.a, what, visit.lines, why_it_is_read(seen, visit, stopped, until))


def why_it_is_read(seen, visit, stopped, until):
    if seen.during(LOSSES, stopped - 3, until):
        return "stop lost by a failover"
    replicas = {visit["replica"]} if isinstance(visit["replica"], int) else {None}
    if seen.without_store(replicas, max(stopped - MIRROR_S, until - SETTLE_S), until):
        return "stop not known without the store"
    return None


def usage_is_counted_once(seen):
    """A complete reading has one usage; all have the same, and so has what is stored."""
    for answer in seen.answers.values():
        counts = {}
        for reading in (reading for reading in answer.readings if reading.is_done):
            told = [visit for visit in reading.visits if visit["usage"]]
            number = sum(visit["usages"] for visit in told)
            if number != 1:
                what = f"reader {reading.r} was told {number} usages"
                yield Broken("usage is counted once", answer.a, what, reading.visits[-1].lines)
            for visit in told:
                counts.setdefault(tokens(visit["usage"]), visit)
        for call in [*answer.polls, *answer.stored]:
            if call.status == 200 and call["usage"]:
                counts.setdefault(tokens(call["usage"]), call)
        if len(counts) > 1:
            what = f"its usage is {' and '.join(map(str, counts))} (prompt and answer)"
            yield Broken("usage is counted once", answer.a, what, [n for call in counts.values() for n in call.lines])


def tokens(usage):
    """Tokens of the prompt and of the answer; how many were cached may differ where two replicas computed them."""
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    return prompt, usage.get("completion_tokens", usage.get("output_tokens"))


def keys_are_apart(seen):
    """Nobody reads what is another key's, and no key's usage shows what another one asked."""
    asked = set()
    for answer in seen.answers.values():
        for call in answer.pries:
            if 200 <= call.status < 300:
                what = f"replica {call['replica']} let somebody read it with another {call['what']}"
                yield Broken("keys are apart", answer.a, what, call.lines)
        mine = (answer.asked["key"], answer.asked["prompt"])
        if mine not in asked and not seen.epochs_of(answer):
            for visit in answer.visits:
                usage = visit["usage"] or {}
                cached = (usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {})
                if 2 * cached.get("cached_tokens", 0) > (tokens(usage)[0] or 0):
                    what = f"its key asks this for the first time, and {cached['cached_tokens']} tokens were cached"
                    yield Broken("keys are apart", answer.a, what, visit.lines)
        asked.add(mine)


def what_exists_is_found(seen):
    """Nobody gets 404 for an answer that exists."""
    for answer in seen.answers.values():
        for call in [*answer.visits, *answer.polls]:
            if call.status != 404 or call.t1 > answer.stopping_t:
                continue
            place = call["place"]
            where = named(place) if place and answer.asked["api"] != "responses" else "its beginning"
            what = f"replica {call['replica']} does not know it, or {where}"
            yield Broken("what exists is found", answer.a, what, call.lines, why_it_is_unknown(seen, answer, call))
        for visit in answer.visits:
            if GONE in (visit["error"] or "") and visit.t1 < answer.stopping_t:
                what = f"{visit['replica']} broke off: {visit['error']}"
                limit = why_it_is_gone(seen, answer, visit.t1)
                yield Broken("what exists is found", answer.a, what, visit.lines, limit)


def why_it_is_unknown(seen, answer, call):
    now = call.t1
    if answer.asked["api"] == "responses":
        return why_it_is_lost(seen, answer, now)
    if limit := why_nobody_has_it(seen, answer, now):
        return limit
    if call["place"] is not None:
        epoch, offset = divmod(call["place"], EPOCH)
        later = [start for of, start in seen.epochs_of(answer).items() if of > epoch]
        # Up to where the next epoch began it is served.
        if later and min(later) < offset:
            return "place of an old epoch"
        if epoch > 0:
            return "owner that does not know its successor"
    owners = seen.owners_of(answer, now)
    return "not in the store yet" if seen.without_store(owners, now - REWRITE_S, now) else None


def why_it_is_gone(seen, answer, now):
    """The limit, if a proxy may give an answer up. It compares by itself what it has with what the store has."""
    if limit := why_nobody_has_it(seen, answer, now):
        return limit
    owner = seen.owner_at(answer, now)
    is_cut_off = owner and now < owner.t1 and seen.without_store({owner.replica}, now - REWRITE_S, now)
    return "not in the store yet" if is_cut_off else None


def why_nobody_has_it(seen, answer, now):
    """The limit, if an answer was lost with its owner, or its owner ended before the store had anything of it."""
    if not any(event["state"] for event in answer.owners):
        asked = seen.asked_of(answer)
        until = min(now, asked.t1) if asked else now
        is_gone = asked is None or asked.t1 <= now
        if is_gone and seen.without_store(seen.owners_of(answer, now), answer.asked.t0, until):
            return "never in the store"
    for loss in seen.during(LOSSES, answer.asked.t0, now):
        owner = seen.owner_at(answer, loss.t0)
        is_kept = loss.kind == "failover" and owner and owner.t1 < loss.t0 - LAG_S
        if is_kept or is_written_again(answer, loss):
            continue
        if owner is None or owner.t1 <= min(now, loss.t1 + REWRITE_S):
            return "lost with its owner"
    return None


def is_written_again(answer, loss):
    """Whether the store was seen with an answer after it was without it. A failover may have kept it."""
    seen_without = loss.t1 if loss.kind == "store-empty" else None
    for event in answer.owners:
        if event["t"] > loss.t0 and not event["state"]:
            seen_without = event["t"]
        elif seen_without is not None and event["t"] > seen_without:
            return True
    return False


def readers_come_to_the_end(seen):
    """Once faults are over, every reader has the whole answer within the bound."""
    for answer in seen.answers.values():
        for event in answer.readers:
            end = event["end"]
            is_stop = end == "stopped" or (end in ("stuck", "lost", "failed") and answer.stopping_t < event["t"])
            if end == "whole" or is_stop or (end == "stuck" and "rest" not in seen.phases):
                continue
            said = next((visit["error"] for visit in reversed(answer.visits) if visit["error"]), None)
            what = f"reader {event['r']} is {end}" + (f": {said}" if said and end == "failed" else "")
            limit = why_it_does_not_end(seen, answer, event)
            yield Broken("readers come to the end", answer.a, what, [event["n"]], limit)


def why_it_does_not_end(seen, answer, event):
    now = event["t"]
    if answer.asked["api"] == "responses":
        return why_it_is_lost(seen, answer, now)
    asked = seen.asked_of(answer)
    if asked and asked.settings in REFUSED and asked.t1 <= now:
        return "nobody with the same settings"
    return why_nobody_has_it(seen, answer, now)


def stored_once(seen):
    """A chat completion that was to be stored is stored as it was read, if the store has lost nothing."""
    for answer in seen.answers.values():
        for call in answer.stored:
            if not answer.is_whole() or answer.deletes:
                continue
            if call.status != 200:
                limit = why_it_is_lost(seen, answer, call.t1)
                yield Broken("stored once", answer.a, f"it is not stored: {call.status}", call.lines, limit)
            elif call["text"] != answer.whole():
                what = f"another text is stored {difference(call['text'], answer.whole())}"
                yield Broken("stored once", answer.a, what, call.lines)


def at_rest(seen):
    """After the grace nothing is kept: counters are zero, and the store forgets answers."""
    for event in seen.rests:
        for name, value in event["gauges"].items():
            if value:
                what = f"replica {event['replica']} has {name} {value:g}"
                yield Broken("at rest", None, what, [event["n"]])
    for answer in seen.answers.values():
        left = answer.left
        if not left or not left["state"] or not answer.is_whole():
            continue
        owner = seen.processes.get(left["owner"])
        if left["state"] == "running":
            # One that nobody generates any more, as its readers needed no more of it, is kept for six hours.
            if owner and left["t"] < owner.t1:
                yield Broken("at rest", answer.a, "it is still generated, and all have read it", [left["n"]])
        elif not 0 <= left["ms"] <= GRACE_S * 1000:
            yield Broken("at rest", answer.a, f"the store forgets it in {left['ms']} ms", [left["n"]])


def processes_live(seen):
    """A replica ends when it is told to, with status 0, and not otherwise."""
    for event in seen.exits:
        expected = {"SIGKILL": -9, "SIGTERM": 0}.get(event["by"])
        if event["code"] != expected:
            what = f"replica {event['replica']} ended by {event['by']} with status {event['code']}"
            yield Broken("processes live", None, what, [event["n"]])


LAWS = (one_text, one_byte, done_if_whole, final, one_owner, deletes_are_final, usage_is_counted_once, keys_are_apart,
        what_exists_is_found, readers_come_to_the_end, stored_once, at_rest, processes_live)
