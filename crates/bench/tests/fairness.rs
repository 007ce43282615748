//! The fairness benchmark: flows share one bottleneck, and the report judges what they got.
#![cfg(target_os = "linux")]

use std::time::Duration;

use loquent_bench::delivery::plan::DeliveryScheme;
use loquent_bench::fairness::figures::{StreamView, TrialStats, WireShare};
use loquent_bench::fairness::plan::{Company, DownloadControl, FairnessCase, FairnessPlan};
use loquent_bench::fairness::report::FairnessReport;
use loquent_bench::fairness::run;
use loquent_bench::link::LinkError;

fn plan() -> FairnessPlan {
    let case =
        FairnessCase { rate_kbps: 1000.0, queue_bytes: 15_000, control: DownloadControl::Cubic };
    FairnessPlan {
        cases: vec![case],
        rtt_ms: 40.0,
        downloads: 2,
        streams: 2,
        tokens_per_s: 10.0,
        events: DeliveryScheme::Cubic,
        warm_up: Duration::from_secs(1),
        length: Duration::from_secs(3),
        runs: 1,
        parallel: 1,
        seed: 5,
        server_program: "unused".into(),
        server_options: Vec::new(),
    }
}

/// Runs a trial; none, and the reason printed, where namespaces cannot be had.
fn trial(plan: &FairnessPlan, company: Company) -> Option<TrialStats> {
    match run::trial(plan, (0, company, 0)) {
        Ok(figures) => Some(figures),
        Err(error) if error.is::<LinkError>() => {
            loquent_needs::Need::Namespaces.lack(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn downloads_fill_the_link_and_make_room_for_event_streams() {
    let plan = plan();
    let Some(alone) = trial(&plan, Company::Nothing) else { return };
    let Some(beside) = trial(&plan, Company::Events) else { return };
    for figures in [&alone, &beside] {
        assert_eq!(figures.goodput_kbps.len(), 2);
        let total = figures.total_kbps();
        // What was in order at the measurement's begin may come within it; headers are no goodput.
        assert!((500.0..1100.0).contains(&total), "{total} of 1000 kbit/s");
    }
    assert!(alone.streams.is_empty());
    assert_eq!(beside.streams.len(), 2);
    let tokens_per_s = beside.mean(|view| view.tokens_per_s);
    // What the queue of the warm-up held back may be shown within the measurement.
    let (warm_up, length) = (plan.warm_up.as_secs_f64(), plan.length.as_secs_f64());
    let most = plan.tokens_per_s * (warm_up + length) / length;
    assert!((5.0..=most).contains(&tokens_per_s), "{tokens_per_s} of at most {most}");
    assert!(beside.streams_down.kb_s > 2.0, "{:?}", beside.streams_down);
    assert!(beside.streams_down.queue_ms > 1.0, "downloads fill the queue of both");
}

fn figures(total_kbps: f64, is_alone: bool) -> TrialStats {
    let view =
        StreamView { tokens_per_s: 9.5, stalled: 0.25, delay_ms: Some(180.0), behind_s: 0.5 };
    TrialStats {
        goodput_kbps: vec![total_kbps / 2.0; 2],
        streams: if is_alone { Vec::new() } else { vec![view; 2] },
        downloads_down: WireShare::default(),
        streams_down: WireShare { kb_s: 4.0, ..WireShare::default() },
        streams_up: WireShare::default(),
        late_p99_ms: 0.2,
    }
}

#[test]
fn the_median_ratio_of_the_runs_is_judged() {
    let plan = FairnessPlan { runs: 3, ..plan() };
    let trials = |ours: [f64; 3]| {
        let runs = ours.into_iter().enumerate();
        let of_run = |(run, ours): (usize, f64)| {
            [(Company::Loquent, ours), (Company::Nothing, 960.0), (Company::Events, 800.0)].map(
                |(company, kbps)| ((0, company, run), figures(kbps, company == Company::Nothing)),
            )
        };
        // Trials end in any order.
        runs.rev().flat_map(of_run).collect::<Vec<_>>()
    };
    let fair = FairnessReport::new(plan.clone(), trials([840.0, 760.0, 400.0]), 0.9);
    assert!(fair.good());
    let table = fair.table();
    assert!(table.contains("met    the downloads get 0.950 [0.500–1.050]"), "{table}");
    assert!(table.contains("960.0 [960.0–960.0]") && table.contains("0.250"), "{table}");
    let unfair = FairnessReport::new(plan, trials([840.0, 700.0, 400.0]), 0.9);
    assert!(!unfair.good() && unfair.table().contains("MISSED"), "{}", unfair.table());
}
