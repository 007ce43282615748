"""The benches whose figures are kept, in the order of what they are worth for each minute.

A bench prints Markdown tables. A column `target` judges the cell to its left, such as `>= 0.97`, or ends with a
verdict, `: reached` or `: missed`; a line `runs: ` and
JSON has the value of each run by measure. It ends with status 0, or with 1 where `fails_on_miss` and a target of its
tables is missed; with any other it has failed.
"""

import dataclasses

QWEN = "Qwen3-0.6B's shape, random weights, Q4_K_M"
QWEN8 = "Qwen3-8B's shape, random weights, Q4_K_M"
GPT2 = "GPT-2's shape, random weights, Q8_0"
TINY = "a tiny shape, random weights, Q4_K_M"
SMOLLM2 = "SmolLM2-135M-Instruct, trained, Q4_1"
GEMMA3 = "Gemma 3 270M, trained, Q4_K_M"
BUNDLED = "loquent-tiny, trained, bundled"
SIMULATED = "simulated engine"

#: Random weights of real shapes, made where they are missing: fine for speed, meaningless as text.
SHAPES = {
    "q.gguf": ["qwen3-0.6b", "--quant", "Q4_K_M"],
    "q8b.gguf": ["qwen3-8b", "--quant", "Q4_K_M"],
    "gpt2.gguf": ["gpt2", "--quant", "Q8_0"],
    "tiny.gguf": ["tiny", "--quant", "Q4_K_M"],
    "embed.gguf": ["qwen3-0.6b", "--layers", "8", "--vocab-size", "20000"],
}
#: The interpreter that has the Python client, which `make test-python-client` builds.
CLIENT = "target/python/venv/bin/python"
#: Models that `tools/models` fetches.
TRAINED = {"smollm2.gguf", "gemma3-270m.gguf"}


@dataclasses.dataclass(frozen=True)
class Bench:
    """`{models}`, `{peers}`, `{llama}`, `{vllm}`, `{loquent}`, `{portable}` and `{fastapi}` in the command are paths of
    this machine, `{tune}` the minutes in which each peer's settings are searched, `{against}` which peers."""

    about: str
    #: How long it takes; with `{peers}`, with each of them once its settings are found, for which `{tune}` is.
    minutes: float
    engine: str
    command: str
    note: str = ""
    #: Programs that it needs, each with the option that prints its version.
    programs: tuple = ()
    #: Python's modules that it needs.
    modules: tuple = ()
    root: bool = False
    fails_on_miss: bool = False


def compare(scenario, model):
    # A start is measured at the usual settings.
    tune = "" if scenario == "startup" else " --tune-minutes {tune}"
    return (f"python3 bench/peers/compare.py {scenario} --model {{models}}/{model} --peers {{peers}} "
            f"--loquent {{loquent}}{tune}{{against}}")


def load(scenario, more=""):
    return f"python3 bench/loads.py {scenario} --loquent {{loquent}}{more}"


BESIDE = ("Each peer has the best of those settings that there was time to try (the caption says which), by the measure of "
          "the first row. Both servers hold the same model, vLLM the same weights as bfloat16, and are driven in turn; "
          "the most probable token is taken, and nothing is drafted. Ratios are run by run, as median [least, most]; where a peer's runs get slower one by one, "
          "the ratio is that of its best run. Memory while serving is that of the last run, which is the largest: it "
          "grows while a cache fills. No run has 100 requests, so that its TTFT p99 is nearly that of the slowest.")
LINK = ("Real packets through an emulated link between two network namespaces (`loquent link`), whose losses the "
        "simulator's seeds decide.")
CPU_NOTE = ("`loquent-http2` is one connection for all 64 streams, as of a gateway; FastAPI has 64 HTTP/1.1 "
            "connections in each row, so only the rows of `loquent` compare like with like.")

THROUGH = "160 requests, 16 at once, alternating. Both servers and the generator share the processors."

BENCHES = {
    "stage15": Bench("16 of 40 requests at once, beside other servers", 3, QWEN, compare("stage15", "q.gguf"), BESIDE +
                     " Loquent takes memory for its cache as it fills (`engine/llama/lazy_zero.rs`), llama-server at "
                     "its start: the difference in memory is smaller where a cache is full."),
    "readers": Bench("500 readers of one answer by event stream", 2, SIMULATED,
                     "python3 bench/readers.py --loquent {loquent}",
                     "One answer of 10 tokens a second; each reader joins over a connection of its own and reads it "
                     "from its beginning."),
    "upstreams": Bench("three upstream servers behind Loquent, and routing by prompt", 3, SIMULATED,
                       "python3 bench/upstreams.py --loquent {loquent}",
                       "The servers are simulated engines of 30 tokens per second and stream: they cannot give more "
                       "than 1,440 together, so the ratio shows that Loquent keeps up, not how fast it can be. Routing "
                       "by prompt finds what another turn left in a server's cache."),
    "delivery-quick": Bench("lossy links in short: Loquent, kernel TCP, and a plain QUIC stream", 8, SIMULATED,
                            "bench/delivery-all.sh --quick", LINK, root=True, fails_on_miss=True),
    "stage15-smollm2": Bench("the same, on SmolLM2-135M", 2, SMOLLM2, compare("stage15", "smollm2.gguf"), BESIDE),
    "one": Bench("one stream, beside other servers", 2, QWEN, compare("one", "q.gguf"), BESIDE),
    "neighbours": Bench("decoding beside busy programs, beside llama-server", 3, SMOLLM2,
                        "python3 bench/neighbours.py --loquent {loquent} --model {models}/smollm2.gguf --peers {peers}"
                        "{against}",
                        "A busy program is a Python loop of normal priority; the servers and the generator share the "
                        "processors with it. llama-server has its usual settings and a thread for each processor."),
    "upstream-kills": Bench("answers whose upstream server is killed, stopped or cut off", 2, BUNDLED,
                            "python3 bench/upstream-kills.py --loquent {loquent} --llama {llama}",
                            "Two real servers behind Loquent, one of which fails once all answers have begun. A stream "
                            "that stayed is held against its text where nothing fails; one that moved against what the "
                            "other server answers to the text before the seam."),
    "upstream": Bench("llama-server directly and through Loquent", 4, TINY,
                      load("upstream", " --model {models}/tiny.gguf --llama {llama}"),
                      THROUGH),
    "upstream-smollm2": Bench("llama-server directly and through Loquent, on SmolLM2-135M", 4, SMOLLM2,
                              load("upstream", " --model {models}/smollm2.gguf --llama {llama}"), THROUGH),
    "upstream-vllm": Bench("vLLM directly and through Loquent, on SmolLM2-135M", 8,
                           "SmolLM2-135M-Instruct, trained, bfloat16",
                           load("upstream", " --model {models}/smollm2.gguf --vllm {vllm} --runs 7"), THROUGH),
    "one-smollm2": Bench("one stream, on SmolLM2-135M", 1, SMOLLM2, compare("one", "smollm2.gguf"), BESIDE),
    "startup": Bench("start to ready, beside other servers", 1, QWEN, compare("startup", "q.gguf")),
    "startup-smollm2": Bench("start to ready, on SmolLM2-135M", 1, SMOLLM2, compare("startup", "smollm2.gguf")),
    "stage15-gemma3": Bench("16 of 40 requests at once, on Gemma 3 270M", 3, GEMMA3,
                            compare("stage15", "gemma3-270m.gguf"), BESIDE),
    "one-gemma3": Bench("one stream, on Gemma 3 270M", 2, GEMMA3, compare("one", "gemma3-270m.gguf"), BESIDE),
    "cpu": Bench("processor time per delivered token, beside FastAPI", 2, SIMULATED,
                 "python3 bench/peers/delivery.py --python {fastapi} --loquent {loquent} --runs 5 --only-fastapi",
                 CPU_NOTE),
    "python": Bench("openai-python over the Python client and over httpx, on a lossy link", 2, SIMULATED,
                    f"{CLIENT} bench/python-client.py --loquent {{loquent}}",
                    LINK + " Both clients ask in turn over the same link.", root=True),
    "inject": Bench("a 4,000-token prompt beside four streams, beside other servers", 5, QWEN,
                    compare("inject", "q.gguf"), BESIDE + " A peer's setting is the one with the shortest gaps."),
    "process": Bench("the engine in a process of its own", 3, QWEN,
                     "bench/engine-process.sh {models}/q.gguf {loquent}"),
    "interval": Bench("64 streams at stream intervals 1, 8 and auto", 1, SIMULATED, load("interval")),
    "slow-readers": Bench("32 streams beside 32 readers that stop reading", 3, SIMULATED, load("slow-readers"),
                          "2,048 tokens outrun the socket buffers, so that the server holds or refuses what is not "
                          "read."),
    "admission": Bench("256 requests at once where 64 are admitted", 1, SIMULATED, load("admission")),
    "hand-over": Bench("what a step costs the engine's thread beside computing", 1, SIMULATED, load("hand-over"),
                       "Sleeps are voluntary context switches of the engine's thread; one for each step is the "
                       "simulated computing."),
    "shares": Bench("fair shares between keys", 1, SIMULATED, "bench/fair-shares.sh 12"),
    "idle": Bench("new requests beside 10,000 idle and 1,000 slow connections", 1, SIMULATED,
                  "bench/idle-connections.sh 20"),
    "long-prompt": Bench("a 4,000-token prompt among 8 streams", 4, QWEN,
                         load("long-prompt", " --model {models}/q.gguf")),
    "speculate": Bench("draft tokens by prompt lookup, one stream", 4, QWEN,
                       "bench/speculate.py --model {models}/q.gguf --loquent {loquent} --modes off,auto,8",
                       "Random weights neither copy nor quote: the rows say what drafting costs, and the last what it "
                       "gains at most, not what real texts gain."),
    "speculate-smollm2": Bench("draft tokens by prompt lookup, on SmolLM2-135M", 3, SMOLLM2,
                               "bench/speculate.py --model {models}/smollm2.gguf --loquent {loquent} "
                               "--modes off,auto,8 --text greedy --text 'temperature 1'"),
    "embeddings": Bench("streams beside clients that embed without a pause", 1,
                        "eight layers of Qwen3-0.6B's shape, random weights, Q4_K_M",
                        "bench/embeddings.py {loquent} {models}/embed.gguf"),
    "batches": Bench("chats of one key beside another's batch", 4, SMOLLM2,
                     "bench/batches.py {loquent} {models}/smollm2.gguf"),
    "restart": Bench("prompts from the prefix cache on disk", 1, SMOLLM2, "bench/restart.py {loquent} {models}/smollm2.gguf"),
    "forecast": Bench("forecasts of the time to first token", 3, BUNDLED,
                      "python3 bench/forecast.py --binary {loquent} --seconds 90"),
    "roofline": Bench("steps beside what the machine can do", 3, QWEN,
                      "bench/roofline.py --model {models}/q.gguf --loquent {loquent}",
                      "Each row of a decode step has a context of 76 tokens."),
    "rose050": Bench("64 requests at once, GPT-2's shape, beside other servers", 4, GPT2,
                     compare("rose050", "gpt2.gguf"), BESIDE),
    "tiny16": Bench("16 at once, a tiny shape, beside other servers", 2, TINY, compare("tiny16", "tiny.gguf"),
                    BESIDE + " The memory of so small a model is mostly the program's."),
    "tiny64": Bench("64 at once, a tiny shape, beside other servers", 2, TINY, compare("tiny64", "tiny.gguf"), BESIDE),
    "two-thousand": Bench("2,000 streams of 10 tokens per second", 4, SIMULATED, load("two-thousand")),
    "delivery": Bench("lossy links: Loquent, kernel TCP, and a plain QUIC stream", 18, SIMULATED,
                      "bench/delivery-all.sh", LINK, root=True, fails_on_miss=True),
    "fairness": Bench("what token streams leave to downloads on one bottleneck", 8, SIMULATED,
                      "python3 bench/fairness.py --warm-up-s 15 --duration-s 30 --runs 3 --parallel 24",
                      "Ten downloads beside ten token streams of 10 tokens per second, real packets; the ratio is the "
                      "downloads' goodput beside Loquent to that beside event streams on TCP (CUBIC).", root=True),
    "two-networks": Bench("answers over two bad networks at once", 11, SIMULATED,
                          "python3 bench/two-networks.py --binary {loquent}",
                          "Real packets through a relay that delays and loses them by seeds, the same for each row; "
                          "`clean` is the noise of the machine.", root=True),
    "replicas": Bench("200 streams while parts of a cluster are killed", 3, BUNDLED,
                      "bench/replicas.py --loquent {loquent}",
                      "Two replicas behind HAProxy with a shared redis-server; 40 of the streams come by QUIC. Pauses "
                      "are measured from the kill.", programs=("haproxy -v", "redis-server --version"),
                      fails_on_miss=True),
    "burst": Bench("bursts of readers, by need and first come, first served", 5, SIMULATED,
                   "bench/burst.py --loquent {loquent}",
                   "Steps take as long as loquent-tiny's. A burst counts as served where nearly all of its readers "
                   "never run out of text."),
    "qoe": Bench("bursts of readers, a third of them on a lossy link", 7, SMOLLM2,
                 "bench/qoe.py --model {models}/smollm2.gguf --loquent {loquent}",
                 "Real packets: all links have a round trip of 100 ms, a third of them lose 15 %. The clients compute on "
                 "the same machine.", root=True),
    "abuse": Bench("all attacks at once beside honest streams", 11, SIMULATED, "bench/abuse.sh 600 2",
                   modules=("aioquic",)),
    "portable": Bench("the portable binary beside the native one", 8, QWEN,
                      "bench/portable.sh {models}/q.gguf {loquent} {portable}"),
    "stages": Bench("a model in stages, batched and in lanes", 15, QWEN, "REPEAT=3 bench/stages.sh {models}/q.gguf",
                    "Every stage is a process of its own on this machine, and all configurations of a part answer in "
                    "turn. The parts with llama.cpp's RPC need a build with `--features rpc`."),
    "formats": Bench("our kernels beside llama.cpp's, by shape and format", 30, "the shape in the row, random weights",
                     "bench/formats.py --models {models} --loquent {loquent} --remove",
                     "Both sides compute in the same program, one process after the other."),
    "formats-avx2": Bench("the kernels for AVX2 beside llama.cpp's, built for it", 16, "the shape in the row, random weights",
                          "bench/formats.py --models {models} --loquent {portable} --shape-model target/release/shape-model "
                          "--kernels loquent-avx2 --only Q4_K_M,Q6_K,Q8_0,Q4_1,Q4_0,Q2_K,F16 --remove",
                          "The portable binary, whose llama.cpp is built for AVX2, computes both sides."),
    "page": Bench("a long answer on the chat page", 4, "stand-in upstream", "LOQUENT_BIN={loquent} taskset -c 0 node bench/page.mjs 3",
                  "4,000 tokens of Markdown at 200 tokens per second in headless Chromium; browser, server and "
                  "upstream share one processor.", programs=("node --version",)),
    "readers-quic": Bench("500 readers of one answer by event stream and by QUIC", 15, SIMULATED, "bench/readers.sh",
                          "The server is a test binary in a process of its own, which takes minutes to build."),
    "seed": Bench("the Skippy pull request's setting: a shape of 8B in 2 and 4 stages", 12, QWEN8,
                  "TOKENS=16 bench/stages.sh {models}/q8b.gguf seed"),
}
