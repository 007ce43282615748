//! The delivery benchmark on real sockets: every token arrives, stalls are seen where they are.
#![cfg(target_os = "linux")]

use loquent_bench::delivery::judge::{Figures, judge};
use loquent_bench::delivery::plan::{Outputs, Plan, Scheme};
use loquent_bench::delivery::{report, run};
use loquent_bench::link::LinkError;
use loquent_sim::channel::Channel;

/// Two short streams; an answer of 30 tokens takes three seconds.
fn plan(schemes: &[Scheme], channel: Channel, without_root: bool) -> Plan {
    Plan {
        title: "test".into(),
        rtts_ms: vec![40.0],
        channel,
        sessions: 2,
        seconds: 3.0,
        tokens_per_s: 10.0,
        seed: 5,
        schemes: schemes.to_vec(),
        pace_ms: 300,
        server_program: "unused".into(),
        server_options: Vec::new(),
        without_root,
        outputs: Outputs::default(),
    }
}

const LOSSY: Channel =
    Channel::Markov { stay_good: 0.6, stay_lossy: 0.6, loss: 0.9, state_ms: 100.0 };

/// Runs a plan; none, and the reason printed, where namespaces cannot be had.
fn figures(plan: &Plan) -> Option<Vec<Vec<Figures>>> {
    match run::run(plan, |_| ()) {
        Ok(trials) => {
            let judged = plan.schemes.iter().zip(&trials[0]).map(|(&scheme, trial)| {
                trial.courses.iter().map(|course| judge(plan, scheme, 40.0, course)).collect()
            });
            let judged = judged.collect();
            let report = report::Report::new(plan.clone(), trials, report::Targets::default());
            println!("{}", report.table());
            Some(judged)
        }
        Err(error) if error.is::<LinkError>() => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn check_clean(figures: &[Vec<Figures>]) {
    for figures in figures.concat() {
        assert_eq!(figures.missing, 0);
        // A busy machine may be late, but not by the half of all tokens.
        assert!(figures.ready.late < 0.5, "{figures:?}");
        assert!(figures.ready.delay_ms >= 20.0, "faster than the link: {figures:?}");
        assert!(figures.down_kb_s > 0.5 && figures.packets_per_s >= 9.0, "{figures:?}");
    }
}

#[test]
fn udp_schemes_deliver_everything_without_root() {
    let schemes = [Scheme::Eloquent, Scheme::LoquentUdp];
    let clean = figures(&plan(&schemes, Channel::Clean, true)).expect("needs no root");
    check_clean(&clean);
    let lossy = figures(&plan(&schemes, LOSSY, true)).expect("needs no root");
    for figures in lossy.concat() {
        assert_eq!(figures.missing, 0, "{figures:?}");
        assert!(figures.ready.excess > 0.0, "half of all packets are lost: {figures:?}");
    }
}

#[test]
fn kernel_tcp_delivers_everything_between_namespaces() {
    let schemes = [Scheme::Cubic, Scheme::LoquentUdp];
    if let Some(clean) = figures(&plan(&schemes, Channel::Clean, false)) {
        check_clean(&clean);
    }
}
