//! An answer over QUIC: over one connection, or over two on networks of their own.
//!
//! With two, each lane is a reader of its own at the server (S-5.4). The receiver puts together
//! what comes over either, and acknowledges it on both ([`Receiver::add_path`]); [`PathChoice`]
//! decides which lane carries the answer. A lane that is lost is looked for again while the other
//! one goes on; only the loss of both ends this path of the answer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use loquent_proto::{Delta, MAX_PATHS, Micros, PathChoice, Position, Receiver, ReceiverEvent};
use tokio::time::Instant;

use super::quic::{LaneEvent, QuicPath};
use super::spare::SpareSearch;
use super::state::{AnswerState, PathOutcome};
use crate::ClientError;
use crate::connections::Connections;

/// Maximum time between two looks at an answer of which nothing is due.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The paths that an answer comes over.
pub(crate) struct QuicLanes {
    /// By their slots at the receiver and at the choice.
    lanes: [Option<QuicPath>; MAX_PATHS],
    /// Index of the network of slot 0; slot 1 has the other one.
    first_network: usize,
    /// Epoch of the log that all lanes carry (D-6.8).
    epoch: u64,
    choice: PathChoice,
    spare: SpareSearch,
}

impl QuicLanes {
    /// Creates the lanes of an answer that comes over `path`.
    pub(super) fn new(connections: &Connections, path: QuicPath) -> Self {
        let (first_network, epoch) = (path.quic.network(), path.epoch);
        let now = connections.now();
        // The first network of the configuration is the better one.
        let preferred = usize::from(first_network != 0);
        let mut choice = PathChoice::new(now, connections.config().via_mode, preferred);
        choice.add_path(now, 0);
        let spare = SpareSearch::new(connections);
        Self { lanes: [Some(path), None], first_network, epoch, choice, spare }
    }

    /// Returns the epoch of the log that is carried.
    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Reads the answer until it ends or all lanes are lost.
    pub(super) async fn carry(&mut self, state: &mut AnswerState) -> PathOutcome {
        if state.has_one_path {
            self.spare.give_up();
        }
        let mut receiver = self.receiver_for(state);
        let outcome = self.receive(state, &mut receiver).await;
        state.receiver = Some(receiver);
        outcome
    }

    /// Returns the receiver with the data of earlier connections, or a new one.
    fn receiver_for(&self, state: &mut AnswerState) -> Receiver {
        let now = state.connections.now();
        let channel = self.lanes[0].as_ref().map_or(0, |lane| lane.route.channel);
        match state.receiver.take() {
            Some(mut receiver) => {
                receiver.migrate(now, channel);
                receiver
            }
            None => Receiver::new(now, channel, 0, state.connections.config().receiver.clone()),
        }
    }

    async fn receive(&mut self, state: &mut AnswerState, receiver: &mut Receiver) -> PathOutcome {
        let mut end = None;
        loop {
            // Nothing more is read while the reader is behind: that is the back-pressure.
            self.advance(state, receiver);
            if end.is_none() {
                end = self.take_events(state, receiver);
            }
            let ready = state.waiting.is_empty();
            if ready && let Some(end) = end.take() {
                return end;
            }
            let at = self.wake_at(&state.connections, receiver, ready);
            let [first, second] = &mut self.lanes;
            tokio::select! {
                biased;
                () = state.items.closed() => return PathOutcome::Cancelled,
                permit = state.items.reserve(), if !ready => {
                    if let (Ok(permit), Some(item)) = (permit, state.waiting.pop_front()) {
                        permit.send(item);
                    }
                    if state.waiting.is_empty() {
                        // The reader was silent, and nothing was read: the paths need not be.
                        receiver.begin_silence(state.connections.now());
                    }
                }
                (slot, event) = next_event(first, second, ready) => {
                    end = self.handle_event(state, receiver, slot, event).or(end);
                }
                outcome = self.spare.outcome(), if ready => {
                    self.handle_spare(state.connections.now(), receiver, outcome);
                }
                () = tokio::time::sleep_until(at) => {
                    if ready {
                        end = self.end_silent(state, receiver).or(end);
                    }
                }
            }
        }
    }

    /// Does everything that is due, and looks for a second lane.
    fn advance(&mut self, state: &AnswerState, receiver: &mut Receiver) {
        let now = state.connections.now();
        receiver.handle_timeout(now);
        match state.waiting.is_empty() {
            true => self.choice.handle_timeout(now),
            false => self.choice.forgive_silence(now),
        }
        for (slot, lane) in self.lanes.iter_mut().enumerate() {
            let Some(lane) = lane else { continue };
            receiver.set_quiet(now, slot, self.choice.is_quiet(slot));
            lane.transmit(now, receiver, slot);
        }
        if let Some(network) = self.missing_network() {
            let position = Position { epoch: self.epoch, offset: receiver.cumulative() };
            self.spare.start_due(&state.connections, network, state.handle, position);
        }
    }

    /// Returns the index of the network that has no lane, if there are two networks.
    fn missing_network(&self) -> Option<usize> {
        let slot = self.lanes.iter().position(Option::is_none)?;
        Some(if slot == 0 { self.first_network } else { 1 - self.first_network })
    }

    fn are_both_there(&self) -> bool {
        self.lanes.iter().all(Option::is_some)
    }

    fn wake_at(&self, connections: &Connections, receiver: &Receiver, ready: bool) -> Instant {
        let choice = self.choice.poll_timeout().filter(|_| ready && self.are_both_there());
        let due = [receiver.poll_timeout(), choice].into_iter().flatten().min();
        let due = due.map(|at| connections.instant(at));
        let lost = self.lanes.iter().flatten().filter_map(|lane| lane.lost_at).min();
        let of_reading = [lost, self.spare.due()].into_iter().flatten().filter(|_| ready);
        of_reading.chain(due).min().unwrap_or_else(|| Instant::now() + LONGEST_WAIT)
    }

    fn handle_event(
        &mut self,
        state: &AnswerState,
        receiver: &mut Receiver,
        slot: usize,
        event: LaneEvent,
    ) -> Option<PathOutcome> {
        let now = state.connections.now();
        let before = receiver.largest_packet(slot);
        let outcome = self.lanes[slot].as_mut()?.handle_event(now, receiver, slot, event);
        let packet = receiver.largest_packet(slot);
        if let Some(packet) = packet.filter(|_| packet != before) {
            self.choice.handle_frame(now, slot, packet);
        }
        if !receiver.has_path(slot) {
            let gone = PathOutcome::Lost(ClientError::Gone);
            return self.end_lane(state, receiver, slot, gone);
        }
        self.end_lane(state, receiver, slot, outcome?)
    }

    /// Ends the lanes that have been silent for too long.
    fn end_silent(&mut self, state: &AnswerState, receiver: &mut Receiver) -> Option<PathOutcome> {
        for slot in 0..MAX_PATHS {
            let lane = self.lanes[slot].as_ref();
            if lane.is_some_and(|lane| lane.is_lost(&state.connections)) {
                let silent = PathOutcome::lost("the path is silent");
                if let Some(outcome) = self.end_lane(state, receiver, slot, silent) {
                    return Some(outcome);
                }
            }
        }
        None
    }

    /// Ends a lane because of `outcome`; returns it if the answer cannot go on over another lane.
    fn end_lane(
        &mut self,
        state: &AnswerState,
        receiver: &mut Receiver,
        slot: usize,
        outcome: PathOutcome,
    ) -> Option<PathOutcome> {
        let error = match outcome {
            PathOutcome::Lost(error) => error,
            PathOutcome::Failed(ClientError::Superseded) => ClientError::Superseded,
            outcome => return Some(outcome),
        };
        if !self.are_both_there() {
            return Some(match error {
                // A server with room for one reader gave its place to the second path, perhaps.
                ClientError::Superseded if self.spare.is_resuming() => PathOutcome::Lost(error),
                error => PathOutcome::of(error),
            });
        }
        tracing::debug!("answer {}: one of two paths: {error}", state.handle.id_hex());
        let now = state.connections.now();
        if !self.choice.is_quiet(slot) {
            state.status.resumes.fetch_add(1, Ordering::Relaxed);
        }
        self.lanes[slot] = None;
        receiver.drop_path(slot);
        self.choice.drop_path(now, slot);
        match error {
            ClientError::Superseded => self.spare.give_up(),
            ClientError::Gone => self.spare.note_failure(),
            _ => self.spare.note_loss(),
        }
        None
    }

    /// Adds the lane that was found, if it carries the same log.
    fn handle_spare(
        &mut self,
        now: Micros,
        receiver: &mut Receiver,
        outcome: Result<QuicPath, ClientError>,
    ) {
        let slot = self.lanes.iter().position(Option::is_none);
        match (outcome, slot) {
            (Ok(path), Some(slot)) if path.epoch == self.epoch => {
                receiver.add_path(now, slot, path.route.channel);
                receiver.acknowledge_at_once_on(now, slot);
                self.choice.add_path(now, slot);
                self.lanes[slot] = Some(path);
                self.spare.note_found();
            }
            // Its bytes may be others at the same offsets (D-6.8).
            (Ok(_), _) => self.spare.note_failure(),
            (Err(ClientError::Superseded), _) => self.spare.give_up(),
            (Err(error), _) => {
                tracing::debug!("no second path: {error}");
                self.spare.note_failure();
            }
        }
    }

    /// Passes the receiver's events to the reader; returns an outcome if the answer ended.
    fn take_events(
        &mut self,
        state: &mut AnswerState,
        receiver: &mut Receiver,
    ) -> Option<PathOutcome> {
        while state.waiting.is_empty() {
            match receiver.poll_event()? {
                ReceiverEvent::Delta { offset, delta } => {
                    if let Delta::Error { message, .. } = &delta {
                        state.server_error = Some(message.clone());
                    }
                    let position = Position { epoch: self.epoch, offset };
                    if let Some(end) = state.deliver_record(position.number(), delta) {
                        return Some(end);
                    }
                }
                ReceiverEvent::Complete => return Some(PathOutcome::Complete),
                ReceiverEvent::Failed(Some(error)) => {
                    return Some(PathOutcome::Failed(ClientError::Malformed(error.to_string())));
                }
                ReceiverEvent::Failed(None) => {
                    let reported = state.server_error.take().map(ClientError::Stream);
                    return Some(PathOutcome::Failed(reported.unwrap_or(ClientError::Gone)));
                }
                ReceiverEvent::Silent => {
                    for (slot, lane) in self.lanes.iter_mut().enumerate() {
                        if let Some(lane) = lane.as_mut().filter(|_| receiver.take_silence(slot)) {
                            lane.try_another_port();
                        }
                    }
                }
            }
        }
        None
    }

    /// Keeps acknowledging until the server knows that everything arrived (D-5.8).
    pub(super) async fn linger(mut self, connections: &Connections, receiver: &mut Receiver) {
        if self.are_both_there() {
            // To a quiet lane's reader at the server this is news.
            let now = connections.now();
            (0..MAX_PATHS).for_each(|slot| receiver.acknowledge_at_once_on(now, slot));
        }
        loop {
            for lane in &mut self.lanes {
                if let Some(mut ended) = lane.take_if(|lane| !lane.is_listened_to()) {
                    ended.finish();
                }
            }
            if receiver.is_closed() || self.lanes.iter().all(Option::is_none) {
                break;
            }
            let now = connections.now();
            receiver.handle_timeout(now);
            for (slot, lane) in self.lanes.iter_mut().enumerate() {
                if let Some(lane) = lane {
                    lane.transmit(now, receiver, slot);
                }
            }
            while receiver.poll_event().is_some() {}
            let at = connections.instant(receiver.poll_timeout().unwrap_or(now));
            let [first, second] = &mut self.lanes;
            let (slot, event) = tokio::select! {
                event = next_event(first, second, true) => event,
                () = tokio::time::sleep_until(at) => continue,
            };
            let lane = self.lanes[slot].as_mut();
            let now = connections.now();
            if lane.is_none_or(|lane| lane.handle_event(now, receiver, slot, event).is_some()) {
                self.lanes[slot] = None;
            }
        }
        self.lanes.iter_mut().flatten().for_each(QuicPath::finish);
    }

    /// Sends STOP and waits for the server to acknowledge it (S-4.5). With two lanes, both say it:
    /// either may be dead.
    pub(super) async fn stop(mut self, connections: &Connections, receiver: &mut Receiver) {
        let mut lanes = self.lanes.iter_mut().enumerate();
        let Some((slot, lane)) = lanes.find_map(|(slot, lane)| Some((slot, lane.as_mut()?))) else {
            return;
        };
        lanes.filter_map(|(_, lane)| lane.as_mut()).for_each(QuicPath::cancel);
        lane.stop(connections.now(), receiver, slot).await;
    }
}

/// Waits for the next event of either lane, with its slot.
async fn next_event(
    first: &mut Option<QuicPath>,
    second: &mut Option<QuicPath>,
    reads: bool,
) -> (usize, LaneEvent) {
    tokio::select! {
        event = event_of(first, reads) => (0, event),
        event = event_of(second, reads) => (1, event),
    }
}

async fn event_of(lane: &mut Option<QuicPath>, reads: bool) -> LaneEvent {
    match lane {
        Some(lane) => lane.next_event(reads).await,
        None => std::future::pending().await,
    }
}
