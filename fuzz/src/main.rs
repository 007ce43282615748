//! One fuzzer for all targets: `FUZZ_TARGET` names the one to run. One program instead of one for
//! each target is built and linked once. `tools/fuzz` builds and runs it.
#![no_main]

use std::sync::LazyLock;
use std::time::Duration;

use cpu_time::ThreadTime;

#[path = "../target.rs"]
mod target;
use target::Target;

macro_rules! targets_of {
    ($($krate:ident),*) => {{
        let mut all = Vec::new();
        $(for it in $krate::fuzz::TARGETS {
            let (base_kib, per_byte) = (it.base_kib, it.per_byte);
            all.push(Target { name: it.name, run: it.run, base_kib, per_byte });
        })*
        all
    }};
}

/// The target that this process runs.
static CHOSEN: LazyLock<Target> = LazyLock::new(|| {
    let all = targets_of!(
        loquent,
        loquent_client,
        loquent_dialects,
        loquent_engine,
        loquent_formats,
        loquent_openai,
        loquent_proto,
        loquent_resumable,
        loquent_responses,
        loquent_server,
        loquent_serving,
        loquent_sim
    );
    let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names the target to run");
    let chosen = all.into_iter().find(|target| target.name == name);
    chosen.unwrap_or_else(|| panic!("there is no target {name:?}"))
});

/// Most processor time that an input may take; on a loaded machine, too, that is the same work.
const MOST_TIME: Duration = Duration::from_secs(1);

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let target = *CHOSEN;
    let started = ThreadTime::now();
    let cost = allocation_counter::measure(|| (target.run)(input));
    target.check_memory(input.len(), cost.bytes_max);
    let took = started.elapsed();
    assert!(took <= MOST_TIME, "{} took {took:?} for {} B", target.name, input.len());
});
