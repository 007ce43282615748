//! From the engine's steps to the clients' streams.
//!
//! One task owns the state of all streams, by slab index: it takes a whole [`Step`] at a
//! time, turns tokens into text and passes on what is due. It never waits for a client. A
//! reader that falls behind finds its tokens merged; past a bound its completion is paused,
//! and after a stall limit ended with an error. Nobody else notices.

use std::sync::Arc;
use std::time::Duration;

use loquent_infer::request::{SequenceEvent, Step, Tag, Work};
use slab::Slab;
use tokio::sync::{mpsc, oneshot};

use crate::admission::Permit;
use crate::choice::{Choice, Progress};
use crate::clock::Clock;
use crate::engine_thread::EngineCommand;
use crate::flow::{Inflow, Outflow, flow};
use crate::flush::Flush;
use crate::metrics::{LocalMetrics, Metrics};

/// Bounds on one stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamBounds {
    /// Text a slow reader may leave unread before its generation is paused.
    pub buffer_bytes: usize,
    /// How long it may stay paused before its stream is ended with an error.
    pub stall_limit: Duration,
}

/// How often held and paused streams are looked at.
const TICK: Duration = Duration::from_millis(10);

/// A request's streams to open.
struct Open {
    openings: Vec<Opening>,
    outflow: Outflow,
    tags: oneshot::Sender<Vec<Tag>>,
}

/// One completion to start.
pub struct Opening {
    /// Its way to text.
    pub choice: Choice,
    /// What the engine is to do; the tag is set here.
    pub work: Box<Work>,
    /// Its place, given back when the generation ends, however slowly the client reads.
    pub ticket: Permit,
    /// Somebody else watches the reader: the stall limit does not hold.
    pub patient: bool,
}

enum Control {
    Open(Open),
    Close(Vec<Tag>),
    Stop,
}

/// What streams that outlive the server are told.
const SHUTDOWN: &str = "the server is shutting down";

/// The request's end: yields its flushes; dropping it cancels what still runs.
#[derive(Debug)]
pub struct Inlet {
    flushes: Inflow,
    tags: oneshot::Receiver<Vec<Tag>>,
    delivery: Handle,
}

impl Inlet {
    /// The next flush; `None` when all completions have ended.
    pub async fn recv(&mut self) -> Option<Flush> {
        std::future::poll_fn(|context| self.poll_recv(context)).await
    }

    /// The next flush, for hand-written bodies.
    pub fn poll_recv(
        &mut self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Flush>> {
        self.flushes.poll_recv(context)
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        // Tags of streams that have ended are stale by generation and ignored.
        self.tags.close();
        if let Ok(tags) = self.tags.try_recv() {
            let _ = self.delivery.control.send(Control::Close(tags));
        }
    }
}

/// Opens streams. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    control: mpsc::UnboundedSender<Control>,
}

impl Handle {
    /// Breaks off all streams with an error, and lets the engine stop.
    pub fn stop(&self) {
        let _ = self.control.send(Control::Stop);
    }

    /// Starts a request's completions; their flushes come out of the returned inlet.
    pub fn open(&self, openings: Vec<Opening>) -> Inlet {
        let (outflow, flushes) = flow();
        let (tag_sender, tags) = oneshot::channel();
        let open = Open { openings, outflow, tags: tag_sender };
        // When delivery is gone the inlet ends at once, without a finish: the caller reports it.
        let _ = self.control.send(Control::Open(open));
        Inlet { flushes, tags, delivery: self.clone() }
    }
}

struct Stream {
    choice: Choice,
    ticket: Permit,
    outflow: Outflow,
    patient: bool,
    generation: u32,
    paused_since: Option<Duration>,
    /// A flush was due when the reader was too far behind.
    blocked: bool,
    /// In [`Delivery::watched`].
    watched: bool,
}

/// The delivery task's state.
struct Delivery {
    streams: Slab<Stream>,
    next_generation: u32,
    bounds: StreamBounds,
    commands: mpsc::UnboundedSender<EngineCommand>,
    clock: Clock,
    metrics: Arc<Metrics>,
    local: LocalMetrics,
    /// Tags of streams that hold content under a deadline, wait for a reader, or are paused.
    watched: Vec<Tag>,
}

/// Starts the delivery task on the current runtime; it ends with the engine.
pub fn start(
    mut steps: mpsc::Receiver<Step>,
    commands: mpsc::UnboundedSender<EngineCommand>,
    bounds: StreamBounds,
    clock: Clock,
    metrics: Arc<Metrics>,
) -> Handle {
    let (control, mut inbox) = mpsc::unbounded_channel();
    let mut delivery = Delivery {
        streams: Slab::new(),
        next_generation: 0,
        bounds,
        commands,
        clock,
        local: metrics.local(),
        metrics,
        watched: Vec::new(),
    };
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                step = steps.recv() => match step {
                    Some(step) => delivery.handle_step(step),
                    None => return delivery.fail_all("the engine has stopped"),
                },
                control = inbox.recv() => match control {
                    Some(Control::Stop) | None => return delivery.fail_all(SHUTDOWN),
                    Some(Control::Open(open)) => delivery.open(open),
                    Some(Control::Close(tags)) => delivery.close(tags),
                },
                _ = tick.tick(), if !delivery.watched.is_empty() => delivery.handle_tick(),
            }
        }
    });
    Handle { control }
}

impl Delivery {
    /// The client is gone. Streams that have ended already are unknown by now.
    fn close(&mut self, tags: Vec<Tag>) {
        for tag in tags {
            if self.remove(tag).is_some() {
                self.send(EngineCommand::Cancel(tag));
            }
        }
    }

    fn open(&mut self, open: Open) {
        let mut tags = Vec::with_capacity(open.openings.len());
        let mut works = Vec::with_capacity(open.openings.len());
        for Opening { choice, mut work, ticket, patient } in open.openings {
            self.next_generation = self.next_generation.wrapping_add(1);
            let stream = Stream {
                choice,
                ticket,
                outflow: open.outflow.clone(),
                patient,
                generation: self.next_generation,
                paused_since: None,
                blocked: false,
                watched: false,
            };
            let index = self.streams.insert(stream);
            work.tag = Tag((u64::from(self.next_generation) << 32) | index as u64);
            tags.push(work.tag);
            works.push(work);
        }
        if open.tags.send(tags.clone()).is_err() {
            // The client left before we knew it.
            tags.into_iter().for_each(|tag| drop(self.remove(tag)));
            return;
        }
        works.into_iter().for_each(|work| self.send(EngineCommand::Submit(work)));
        for tag in tags {
            if let Some(stream) = self.stream(tag) {
                stream.ticket.arrive();
            }
        }
    }

    fn handle_step(&mut self, step: Step) {
        let now = self.clock.now();
        self.metrics.on_hand_over(now.saturating_sub(step.finished));
        for event in step.events {
            self.handle_event(now, step.finished, step.rows, event);
        }
        self.local.publish();
    }

    /// Takes an event of a step that had `rows` sequences and was `finished` a moment ago.
    fn handle_event(&mut self, now: Duration, finished: Duration, rows: u32, event: SequenceEvent) {
        let tag = event.tag;
        let Some(stream) = self.stream(tag) else {
            return;
        };
        stream.ticket.dequeue();
        let clear = stream.choice.minds_backlog() && stream.unread_bytes() == 0;
        let last = stream.choice.last_token().filter(|_| event.token.is_some());
        let progress = stream.choice.on_event(finished, rows, event, clear);
        let waits = stream.choice.deadline().is_some() || stream.choice.wants_clear();
        if let Some(last) = last {
            self.local.on_token_gap(finished.saturating_sub(last));
        }
        match progress {
            Progress::Held if waits => self.watch(tag),
            Progress::Held => {}
            Progress::Due => self.flush(now, tag),
            Progress::Ended => self.end(now, tag),
            Progress::Stopped => {
                self.end(now, tag);
                self.send(EngineCommand::Finish(tag));
            }
        }
    }

    /// Passes on what is held, unless the reader has fallen too far behind.
    fn flush(&mut self, now: Duration, tag: Tag) {
        let bounds = self.bounds;
        let Some(stream) = self.stream(tag) else {
            return;
        };
        let unread = stream.unread_bytes();
        stream.blocked = unread >= bounds.buffer_bytes / 2;
        if !stream.blocked {
            if let Some(flush) = stream.choice.take_flush(now) {
                self.local.on_flush(flush.tokens);
                self.pass_on(tag, flush);
            }
            return;
        }
        let full = unread + stream.choice.held_bytes() >= bounds.buffer_bytes;
        if full && stream.paused_since.is_none() {
            stream.paused_since = Some(now);
            self.metrics.on_pause();
            self.send(EngineCommand::Pause(tag));
        }
        self.watch(tag);
    }

    fn end(&mut self, now: Duration, tag: Tag) {
        let Some(mut stream) = self.remove(tag) else {
            return;
        };
        if let Some(flush) = stream.choice.take_flush(now) {
            self.local.on_flush(flush.tokens);
            stream.pass_on(flush);
        }
    }

    fn pass_on(&mut self, tag: Tag, flush: Flush) {
        let gone = self.stream(tag).is_some_and(|stream| !stream.pass_on(flush));
        if gone {
            self.remove(tag);
            self.send(EngineCommand::Cancel(tag));
        }
    }

    /// Looks after streams that hold something without a new token to push it out.
    fn handle_tick(&mut self) {
        let now = self.clock.now();
        for tag in std::mem::take(&mut self.watched) {
            self.look_after(now, tag);
        }
        self.local.publish();
    }

    fn look_after(&mut self, now: Duration, tag: Tag) {
        let bounds = self.bounds;
        let Some(stream) = self.stream(tag) else {
            return;
        };
        stream.watched = false;
        let unread = stream.unread_bytes();
        let caught_up = unread < bounds.buffer_bytes / 2;
        let overdue = stream.choice.deadline().is_some_and(|at| now >= at);
        let clear = unread == 0 && stream.choice.wants_clear();
        match stream.paused_since {
            Some(_) if caught_up => {
                stream.paused_since = None;
                self.send(EngineCommand::Resume(tag));
                self.flush(now, tag);
            }
            Some(since) if !stream.patient && now.saturating_sub(since) >= bounds.stall_limit => {
                stream.choice.fail("the client stopped reading its stream");
                self.end(now, tag);
                self.send(EngineCommand::Cancel(tag));
            }
            None if overdue || clear || (stream.blocked && caught_up) => self.flush(now, tag),
            None if stream.choice.held_bytes() == 0 => {}
            _ => self.watch(tag),
        }
    }

    fn fail_all(&mut self, message: &str) {
        let now = self.clock.now();
        for mut stream in self.streams.drain() {
            stream.choice.fail(message);
            if let Some(flush) = stream.choice.take_flush(now) {
                stream.pass_on(flush);
            }
        }
    }

    fn watch(&mut self, tag: Tag) {
        let Some(stream) = self.stream(tag) else {
            return;
        };
        if !std::mem::replace(&mut stream.watched, true) {
            self.watched.push(tag);
        }
    }

    fn stream(&mut self, tag: Tag) -> Option<&mut Stream> {
        let (index, generation) = split(tag);
        self.streams.get_mut(index).filter(|stream| stream.generation == generation)
    }

    fn remove(&mut self, tag: Tag) -> Option<Stream> {
        self.stream(tag)?;
        Some(self.streams.remove(split(tag).0))
    }

    fn send(&self, command: EngineCommand) {
        // A dead engine closes the step queue, which ends this task with an error to all.
        let _ = self.commands.send(command);
    }
}

impl Stream {
    fn unread_bytes(&self) -> usize {
        self.outflow.unread_bytes()
    }

    /// Hands a flush to the client's side; false when the client is gone.
    fn pass_on(&self, flush: Flush) -> bool {
        self.outflow.send(flush)
    }
}

/// A tag's slab index and generation.
fn split(tag: Tag) -> (usize, u32) {
    (tag.0 as u32 as usize, (tag.0 >> 32) as u32)
}
