"""Sampling parameters of requests that set none: what holds, where it is shown, and that it stays with an answer."""

import signal

import httpx

from test_replicas import BODY, QUESTION
from test_takeover import goes_on, killed

ASK = {"messages": [{"role": "user", "content": "What is token streaming?"}], "max_tokens": 60, "seed": 3}
# So wild that no two texts of the simulated engine are equal by chance.
WILD = ("--temperature", "2", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--repeat-penalty", "10")


def text_of(server, body, path="/v1/chat/completions"):
    answer = httpx.post(f"{server.url}{path}", json=body).json()
    return (answer.get("message") or answer["choices"][0]["message"])["content"]


def props(server):
    return httpx.get(f"{server.url}/props").json()


def test_without_flags_the_models_own_values_hold(server):
    held = props(server)["sampling_defaults"]
    assert held == httpx.get(f"{server.url}/v1/models").json()["data"][0]["sampling_defaults"]
    assert held["temperature"] == 0 and set(held["from"].values()) == {"vendor"}
    greedy = {**ASK, "temperature": 0}
    assert text_of(server, ASK) == text_of(server, greedy) == text_of(server, {**greedy, "seed": 4})


def test_a_flag_wins_over_the_model_and_a_request_over_the_flag(start, server):
    wild = start(*WILD)
    assert props(wild)["default_generation_settings"]["params"] == {
        "temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0, "repeat_penalty": 10,
    }
    assert set(props(wild)["sampling_defaults"]["from"].values()) == {"flag"}
    told = {**ASK, "temperature": 0, "repetition_penalty": 1}
    assert text_of(wild, ASK) != text_of(wild, told) == text_of(server, ASK)
    options = {"seed": 3, "num_predict": 60, "repeat_last_n": -1}
    asked = {"model": "any", "stream": False, "messages": ASK["messages"], "options": options}
    assert text_of(wild, asked, "/api/chat") == text_of(wild, ASK)
    # By default this API's penalty concerns the last 64 tokens.
    asked["options"] = {"seed": 3, "num_predict": 60}
    assert text_of(wild, asked, "/api/chat") != text_of(wild, ASK)
    asked["options"] = {**options, "temperature": 0, "repeat_penalty": 1}
    assert text_of(wild, asked, "/api/chat") == text_of(server, ASK)


def test_the_environment_and_the_file_of_settings_set_them_too(start, tmp_path):
    file = tmp_path / "config.toml"
    file.write_text("[serve]\ntop-k = 7\ntemperature = 1.5\n")
    server = start("--simulate", "inf", env={"LOQUENT_TEMPERATURE": "0.25", "LOQUENT_CONFIG": str(file)})
    held = props(server)["sampling_defaults"]
    assert (held["temperature"], held["top_k"], held["top_p"], held["min_p"]) == (0.25, 7, 0.95, 0.05)
    assert (held["from"]["temperature"], held["from"]["top_p"]) == ("flag", "default")


def test_a_model_that_is_not_loaded_yet_shows_what_will_hold(start):
    server = start("-m", "one=tiny", "-m", "two=tiny", "--temperature", "0.5")
    held = httpx.get(f"{server.url}/props", params={"model": "two"}).json()
    assert held["model_alias"] == "two" and held["sampling_defaults"]["temperature"] == 0.5
    assert "n_ctx" not in held["default_generation_settings"], "it is not loaded for that"
    cards = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert [card["sampling_defaults"]["from"]["temperature"] for card in cards] == ["flag", "flag"]


def test_an_upstream_server_gets_a_request_as_it_is(start):
    behind = start("--simulate", "inf", *WILD)
    front = start("--upstream", behind.url, "--temperature", "0")
    assert text_of(front, ASK) == text_of(behind, ASK) != text_of(behind, {**ASK, "repetition_penalty": 1})
    assert any("have no effect" in line for line in front.log)


def test_an_answer_that_is_taken_over_goes_on_with_the_values_it_began_with(start, redis):
    pace = ("--simulate", "100", "--resume-grace-s", "30", "--store", redis.url)
    owner, other = start(*pace, *WILD), start(*pace)
    asked = {**BODY, "messages": QUESTION, "seed": 5}
    whole = text_of(start("--simulate", "inf", *WILD), {"messages": QUESTION, "seed": 5})
    assert whole != text_of(other, {"messages": QUESTION, "seed": 5})
    name, reading = killed(owner, asked)
    goes_on(other, name, reading)
    assert reading.text() == whole
    assert owner.process.returncode == -signal.SIGKILL
