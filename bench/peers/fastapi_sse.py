"""An SSE completion server on FastAPI and uvicorn (uvloop, httptools) over a simulated source.

The source gives every stream a token at the same fixed rate, all in one step, as a batching
engine does. One task waits for the next step and wakes all streams through one future: the
cheapest hand-over that asyncio has. Needs `pip install fastapi uvicorn uvloop httptools`.
"""

import argparse
import asyncio
import json
import time

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

WORDS = ["stream", "of", "tokens", "that", "arrive", "one", "by", "one", "and", "stay", "small"]


class Source:
    """Steps at a fixed rate while somebody waits for one."""

    def __init__(self, rate):
        self.step_s = 1.0 / rate
        self.next_step = None
        self.ticking = None

    async def step(self):
        """Returns at the end of the current step."""
        if self.next_step is None:
            self.next_step = asyncio.get_running_loop().create_future()
            if self.ticking is None:
                self.ticking = asyncio.create_task(self._tick())
        await self.next_step

    async def _tick(self):
        deadline = time.monotonic()
        while self.next_step is not None:
            deadline = max(deadline + self.step_s, time.monotonic())
            await asyncio.sleep(deadline - time.monotonic())
            done, self.next_step = self.next_step, None
            done.set_result(None)
            # The streams run before this task again, and ask for the next step.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        self.ticking = None


def application(rate):
    app, source = FastAPI(), Source(rate)

    @app.get("/health")
    async def health():
        return {"status": "ok"}

    @app.get("/v1/models")
    async def models():
        return {"object": "list", "data": [{"id": "simulated", "object": "model"}]}

    @app.post("/v1/completions")
    async def completions(request: Request):
        body = await request.json()
        return StreamingResponse(
            chunks(source, body.get("max_tokens", 16), body.get("stream_interval", 1)),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache"},
        )

    return app


async def chunks(source, tokens, interval):
    """The answer's events: a chunk each `interval` tokens, usage, [DONE]."""
    created = int(time.time())
    envelope = {"id": f"cmpl-{created}", "object": "text_completion", "created": created, "model": "simulated"}
    # The envelope is rendered once, the text put into it: as cheap as Python can.
    head = "data: " + json.dumps(envelope)[:-1] + ', "choices": [{"index": 0, "text": '
    tail = ', "logprobs": null, "finish_reason": null}]}\n\n'
    held = []
    for index in range(tokens):
        await source.step()
        held.append(" " + WORDS[index % len(WORDS)])
        if index == 0 or len(held) == interval or index + 1 == tokens:
            yield head + json.dumps("".join(held)) + tail
            held.clear()
    yield head + '"", "logprobs": null, "finish_reason": "length"}]}\n\n'
    envelope["choices"] = []
    envelope["usage"] = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
    yield "data: " + json.dumps(envelope) + "\n\n"
    yield "data: [DONE]\n\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8082)
    parser.add_argument("--rate", type=float, default=100.0, help="tokens/s of each stream")
    arguments = parser.parse_args()
    uvicorn.run(
        application(arguments.rate), host="127.0.0.1", port=arguments.port,
        loop="uvloop", http="httptools", log_level="warning", access_log=False,
    )


if __name__ == "__main__":
    main()
