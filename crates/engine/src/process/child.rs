//! The engine's side: receives orders, sends tokens.

use std::io::{self, BufReader, Write};
use std::mem;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

use loquent_infer::runner::{Runner, Slot};
use loquent_infer::sampling::{Constraint, Sampler};
use loquent_infer::token::{RowError, TokenId};

use super::lock;
use super::wire::{Allowed, EngineFacts, EngineOrder, EngineReport, read_frame};

/// Maximum orders that wait while a batch is computed. There are hardly any: the server waits too.
const QUEUED_ORDERS: usize = 64;

/// Loads an engine with `load`, which may report percentages, and executes the orders from the
/// server at the other end of `stream`, until that closes the connection.
///
/// `leave` is called on another thread when the connection has ended, even in the middle of a
/// batch: nobody waits for the engine any more.
///
/// # Errors
/// If the connection breaks. A model that cannot be loaded is reported to the server.
pub fn serve(
    mut stream: UnixStream,
    load: impl FnOnce(&mut dyn FnMut(u8)) -> Result<(Box<dyn Runner>, EngineFacts), String>,
    leave: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let orders = receive(stream.try_clone()?, leave)?;
    let mut progress = stream.try_clone()?;
    let loaded = load(&mut |percent| {
        // A server that is gone is noticed by the thread that reads.
        let _ = send(&mut progress, &EngineReport::Loading(percent));
    });
    match loaded {
        Err(why) => send(&mut stream, &EngineReport::Refused(why)),
        Ok((runner, facts)) => {
            send(&mut stream, &EngineReport::Ready(Box::new(facts)))?;
            Engine::new(runner).run(&orders, &mut stream)
        }
    }
}

fn send(stream: &mut UnixStream, report: &EngineReport) -> io::Result<()> {
    let mut frame = Vec::new();
    report.encode(&mut frame);
    stream.write_all(&frame)
}

/// Reads orders on its own thread, so that the end of the connection is noticed at once.
fn receive(
    stream: UnixStream,
    leave: impl FnOnce() + Send + 'static,
) -> io::Result<Receiver<EngineOrder>> {
    let (orders, queue) = sync_channel(QUEUED_ORDERS);
    thread::Builder::new().name("orders".into()).spawn(move || {
        forward(stream, &orders);
        leave();
    })?;
    Ok(queue)
}

fn forward(stream: UnixStream, orders: &SyncSender<EngineOrder>) {
    let (mut input, mut frame) = (BufReader::with_capacity(1 << 16, stream), Vec::new());
    while read_frame(&mut input, &mut frame).is_ok() {
        let Ok(order) = EngineOrder::decode(&frame) else { return };
        if orders.send(order).is_err() {
            return;
        }
    }
}

/// A runner, and the tokens that the server's grammars allow its sequences.
struct Engine {
    runner: Box<dyn Runner>,
    allowed: Vec<SharedTokens>,
}

/// Tokens that a slot may choose next, once the server has sent them.
type SharedTokens = Arc<Mutex<Option<Vec<u32>>>>;

impl Engine {
    fn new(runner: Box<dyn Runner>) -> Self {
        let slots = runner.capacity().slots;
        Self { runner, allowed: (0..slots).map(|_| SharedTokens::default()).collect() }
    }

    fn run(&mut self, orders: &Receiver<EngineOrder>, stream: &mut UnixStream) -> io::Result<()> {
        // It ends when the thread that reads does.
        for order in orders {
            match order {
                EngineOrder::Assign { slot, has_grammar, sampler } => {
                    let mut sampler = Sampler::from(*sampler);
                    if has_grammar {
                        let shared = self.tokens_of(slot)?.clone();
                        sampler
                            .constrain(Some(Box::new(SentTokens { shared, tokens: Vec::new() })));
                    }
                    self.runner.assign(slot, sampler);
                }
                EngineOrder::Fork { from, to, len } => self.runner.fork(from, to, len),
                EngineOrder::Truncate { slot, len } => self.runner.truncate(slot, len),
                EngineOrder::Run { batch, allowed } => {
                    for Allowed { slot, tokens } in allowed {
                        *lock(self.tokens_of(slot)?) = Some(tokens);
                    }
                    let mut sampled = Vec::new();
                    let outcome = self.runner.run(&batch, &mut sampled).map(|()| sampled);
                    let verify_rows = self.runner.verify_rows();
                    send(stream, &EngineReport::Done { outcome, verify_rows })?;
                }
            }
        }
        Ok(())
    }

    fn tokens_of(&self, slot: Slot) -> io::Result<&SharedTokens> {
        self.allowed.get(slot.index()).ok_or_else(|| io::Error::other("a slot that is not there"))
    }
}

/// Constraint of a grammar that is followed in the server.
struct SentTokens {
    shared: SharedTokens,
    /// The last ones received: a row that is computed again is sampled under the same.
    tokens: Vec<u32>,
}

impl Constraint for SentTokens {
    fn allowed(&mut self) -> Result<&[u32], RowError> {
        if let Some(tokens) = mem::take(&mut *lock(&self.shared)) {
            self.tokens = tokens;
        }
        if self.tokens.is_empty() { Err(RowError::OutOfStep) } else { Ok(&self.tokens) }
    }

    fn accept(&mut self, _token: TokenId) {
        // The server advances the grammar, and sends what is allowed then with the next batch.
    }
}
