//! The two ends of a scheme that streams over a namespace pair, each on its own thread.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::task::JoinSet;

use super::metrics::StreamTrace;
use super::plan::{DeliveryPlan, TimedTokens};
use super::starts::{Starts, blocking_runtime};
use super::testbed::StreamNetwork;
use crate::link::netns::Namespace;
use crate::link::realtime::be_realtime;

/// Times by session, in µs after the session's start.
pub(super) type Times = Vec<Vec<u64>>;

/// Shared knowledge of both ends: the answers by session, and the start of each session.
pub(super) type Known = (Arc<Vec<TimedTokens>>, Arc<Starts>);

/// Runs `serve` in the server's namespace and `read` in the client's, and combines their results:
/// the times when tokens were generated and when they were read. The traces are in session order.
///
/// # Errors
/// If the network has no namespaces, a thread cannot be started, or an end fails.
pub(super) fn stream<S, R>(
    plan: &DeliveryPlan,
    network: &dyn StreamNetwork,
    starts: &Arc<Starts>,
    serve: impl FnOnce(Known) -> S + Send + 'static,
    read: impl FnOnce(Known) -> R + Send + 'static,
) -> anyhow::Result<Vec<StreamTrace>>
where
    S: Future<Output = io::Result<Times>>,
    R: Future<Output = io::Result<Times>>,
{
    let (server_side, client_side) = sides(network)?;
    let answers = Arc::new((0..plan.sessions).map(|session| plan.answer(session)).collect());
    let known: Known = (answers, Arc::clone(starts));
    let sending = end(server_side, "server", known.clone(), serve)?;
    let receiving = end(client_side, "client", known, read)?;
    starts.open(|session, at| network.begin(session, at));
    let joined = |thread: JoinHandle<io::Result<io::Result<Times>>>| {
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a side has panicked")))
    };
    let generated = joined(sending)??;
    let ready = joined(receiving)??;
    let traces = generated.into_iter().zip(ready).map(|(generated_us, ready_us)| StreamTrace {
        generated_us,
        ready_us,
        ..StreamTrace::default()
    });
    Ok(traces.collect())
}

/// Returns the server's and the client's namespace.
///
/// # Errors
/// If the network has no namespaces.
pub(super) fn sides(network: &dyn StreamNetwork) -> anyhow::Result<(&Namespace, &Namespace)> {
    let sides = network.server_side().zip(network.client_side());
    sides.ok_or_else(|| anyhow::anyhow!("streams of the kernel's network need namespaces"))
}

fn end<F: Future<Output = io::Result<Times>>>(
    side: &Namespace,
    name: &str,
    known: Known,
    run: impl FnOnce(Known) -> F + Send + 'static,
) -> anyhow::Result<JoinHandle<io::Result<io::Result<Times>>>> {
    let thread = side.spawn(name, move || {
        be_realtime();
        blocking_runtime()?.block_on(run(known))
    });
    Ok(thread?)
}

/// Collects the times of all sessions as their tasks end.
pub(super) async fn gather(
    mut tasks: JoinSet<io::Result<(usize, Vec<u64>)>>,
    sessions: usize,
) -> io::Result<Times> {
    let mut all = vec![Vec::new(); sessions];
    while let Some(done) = tasks.join_next().await {
        let (session, times_us) = done.map_err(io::Error::other)??;
        all[session] = times_us;
    }
    Ok(all)
}
