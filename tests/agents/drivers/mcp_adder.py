"""An MCP server over stdin and stdout with one tool, `add_numbers`, that adds."""

import json
import sys

NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
TOOL = {
    "name": "add_numbers",
    "description": "Adds two numbers",
    "inputSchema": NUMBERS,
    "annotations": {"readOnlyHint": True},
}


def answer(method, params):
    if method == "initialize":
        about = {"name": "adder", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        numbers = params["arguments"]
        return {"content": [{"type": "text", "text": str(numbers["a"] + numbers["b"])}]}
    return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = answer(request["method"], request.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
