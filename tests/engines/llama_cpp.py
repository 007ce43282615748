"""llama.cpp's server, of the package xllamacpp, with what the tests set: no compiler is needed for it.

    python llama_cpp.py MODEL TEMPLATE ALIAS PORT SEQUENCES CELLS
"""

import pathlib
import sys
import threading

import xllamacpp


def main(model, template, alias, port, sequences, cells):
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = model, {alias}
    params.chat_template, params.port = pathlib.Path(template).read_text(), int(port)
    params.n_parallel, params.n_ctx = int(sequences), int(cells)
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.kv_unified = False
    params.use_jinja = params.endpoint_metrics = True
    params.cache_prompt, params.cache_ram_mib = False, 0
    server = xllamacpp.Server(params)
    assert server.listening_address
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
