//! Runs worlds: `replica-world SEED` tells the history of one, `replica-world FIRST COUNT` runs
//! many, `replica-world planted [WORD]` finds the planted faults.

use std::process::ExitCode;
use std::time::Instant;

use loquent_world::{PLANTED, WorldPlanting, WorldReport, run};

/// Worlds after which the progress is told.
const PROGRESS_EVERY: u64 = 500;

const USAGE: &str = "usage: replica-world SEED | FIRST COUNT | planted [WORD]\n\
                     SEED runs one world and prints its history; FIRST COUNT runs the worlds of \
                     so many seeds and stops at the first broken law; planted finds planted \
                     faults, or those with the word in their names";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let numbers: Vec<Option<u64>> = words.iter().map(|word| word.parse().ok()).collect();
    match (&words[..], &numbers[..]) {
        (["planted"], _) => planted(""),
        (["planted", word], _) => planted(word),
        (_, [Some(seed)]) => tell(&run(*seed, &WorldPlanting::default())),
        (_, [Some(first), Some(count)]) => many(*first, *count),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn tell(report: &WorldReport) -> ExitCode {
    print!("{}", report.history.text());
    let WorldReport { seed, whole, clients, excused, takeovers, history, .. } = report;
    println!(
        "seed {seed}: {whole} whole, {excused} excused, {takeovers} takeovers, {clients} clients \
         of responses"
    );
    println!("fingerprint {:016x}", history.fingerprint());
    match &report.broken {
        Some(law) => {
            println!("broken: {law}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

fn many(first: u64, count: u64) -> ExitCode {
    let (begun, planting) = (Instant::now(), WorldPlanting::default());
    let (mut whole, mut clients, mut excused, mut takeovers) = (0, 0, 0, 0);
    for seed in first..first + count {
        let report = run(seed, &planting);
        if report.broken.is_some() {
            return tell(&report);
        }
        whole += report.whole;
        clients += report.clients;
        excused += report.excused;
        takeovers += report.takeovers;
        let done = seed - first + 1;
        if done.is_multiple_of(PROGRESS_EVERY) && done < count {
            eprintln!("{done} of {count} worlds, {:.0} s", begun.elapsed().as_secs_f64());
        }
    }
    println!(
        "{count} worlds from seed {first}: {whole} readers whole, {excused} excused, {takeovers} \
         takeovers, {clients} clients of responses, {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    ExitCode::SUCCESS
}

fn planted(word: &str) -> ExitCode {
    let mut all = true;
    for fault in PLANTED.iter().filter(|fault| fault.name.contains(word)) {
        let found = fault.search();
        all &= found.is_some();
        match found {
            Some((seed, law)) => println!("{}: seed {seed}: {law}", fault.name),
            None => println!("{}: not found", fault.name),
        }
    }
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
