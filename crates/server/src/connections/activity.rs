//! Activity of one connection, and the time limits that follow from it.
//!
//! A connection keeps its place while the server works for it. Waiting only for the client is
//! bounded in time: for a request, for the rest of a body, and for reading a response.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use slab::Slab;

use super::limits::TcpLimits;

/// The state of one connection, shared by its socket, its requests and its task.
pub struct Activity(Mutex<ConnectionState>);

struct ConnectionState {
    phase: ConnectionPhase,
    exchanges: Slab<ExchangePhase>,
    /// Time since which the socket has accepted no data.
    unread_since: Option<Instant>,
    /// Time when the last exchange ended.
    idle_since: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionPhase {
    /// No request has arrived yet.
    New,
    /// Accepts requests.
    Open,
    /// Accepts no more requests.
    Closing {
        since: Instant,
        /// The server is shutting down: the rest of a body is not waited for.
        is_shutdown: bool,
    },
}

/// The party that one request and its response are waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangePhase {
    /// The client: the request's body has not ended.
    Receiving,
    /// The server.
    Answering,
    /// The client: a piece of the response was handed out, and no further one has been requested.
    Sending {
        /// Time when the piece was handed out.
        since: Instant,
    },
}

/// Next action of the connection's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Check again at this time or later.
    CheckAt(Instant),
    /// Let the running requests end and accept no more.
    Close,
    /// Drop the connection: only its client is waited for.
    Abandon,
}

impl Activity {
    /// Returns the state of a new connection, from which nothing has been read.
    pub fn new(now: Instant) -> Self {
        Self(Mutex::new(ConnectionState {
            phase: ConnectionPhase::New,
            exchanges: Slab::new(),
            unread_since: None,
            idle_since: now,
        }))
    }

    /// Adds a request; returns its number.
    pub fn begin(&self) -> usize {
        let mut state = self.state();
        if state.phase == ConnectionPhase::New {
            state.phase = ConnectionPhase::Open;
        }
        state.exchanges.insert(ExchangePhase::Receiving)
    }

    /// Sets the phase of a request.
    pub fn note(&self, exchange: usize, phase: ExchangePhase) {
        if let Some(noted) = self.state().exchanges.get_mut(exchange) {
            *noted = phase;
        }
    }

    /// Notes that a request's body has ended or is no longer read.
    pub fn received(&self, exchange: usize) {
        let mut state = self.state();
        let noted = state.exchanges.get_mut(exchange);
        if let Some(noted) = noted.filter(|noted| **noted == ExchangePhase::Receiving) {
            *noted = ExchangePhase::Answering;
        }
    }

    /// Removes a request whose response has ended.
    pub fn end(&self, exchange: usize, now: Instant) {
        let mut state = self.state();
        state.exchanges.try_remove(exchange);
        state.idle_since = now;
    }

    /// Sets the time since which the socket has accepted no data; `None` as soon as it accepts
    /// some.
    pub fn note_unread(&self, since: Option<Instant>) {
        self.state().unread_since = since;
    }

    /// Notes that the connection accepts no more requests.
    pub fn close(&self, now: Instant, is_shutdown: bool) {
        let mut state = self.state();
        let since = match state.phase {
            ConnectionPhase::Closing { since, .. } => since,
            _ => now,
        };
        state.phase = ConnectionPhase::Closing { since, is_shutdown };
    }

    /// Returns the action due at `now`.
    pub fn next_step(&self, now: Instant, limits: &TcpLimits) -> NextStep {
        let state = self.state();
        let due = match state.phase {
            ConnectionPhase::Closing { since, is_shutdown } => {
                let due = since + limits.close_timeout;
                return match state.waits_for_client_only(now, limits, is_shutdown) {
                    true if now >= due => NextStep::Abandon,
                    _ => NextStep::CheckAt(due.max(now + limits.close_timeout)),
                };
            }
            ConnectionPhase::New if state.is_idle() => state.idle_since + limits.request_timeout,
            ConnectionPhase::Open if state.is_idle() => state.idle_since + limits.idle_timeout,
            _ => state.first_stall(now) + limits.write_timeout,
        };
        match now >= due {
            true => NextStep::Close,
            // What changes meanwhile wakes nobody, and may be due sooner.
            false => NextStep::CheckAt(due.min(now + limits.shortest())),
        }
    }

    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

impl ConnectionState {
    /// Returns true if there is no request and no unread response. A response may still be unread
    /// after its request counts as ended.
    fn is_idle(&self) -> bool {
        self.exchanges.is_empty() && self.unread_since.is_none()
    }

    /// Returns the time since which the oldest unread piece of a response has been unread; `now` if
    /// there is none.
    fn first_stall(&self, now: Instant) -> Instant {
        let unread = self.exchanges.iter().filter_map(|(_, phase)| match phase {
            ExchangePhase::Sending { since } => Some(*since),
            _ => None,
        });
        unread.min().unwrap_or(now)
    }

    fn waits_for_client_only(&self, now: Instant, limits: &TcpLimits, is_shutdown: bool) -> bool {
        let waits = |phase: &ExchangePhase| match phase {
            // While the server goes on, a body has a deadline of its own.
            ExchangePhase::Receiving => is_shutdown,
            ExchangePhase::Answering => false,
            ExchangePhase::Sending { since } => has_passed(*since, limits.write_timeout, now),
        };
        let written =
            self.unread_since.is_none_or(|since| has_passed(since, limits.write_timeout, now));
        written && self.exchanges.iter().all(|(_, phase)| waits(phase))
    }
}

fn has_passed(since: Instant, limit: Duration, now: Instant) -> bool {
    now >= since + limit
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn limits() -> TcpLimits {
        TcpLimits {
            request_timeout: 30 * S,
            idle_timeout: 60 * S,
            write_timeout: 40 * S,
            close_timeout: 2 * S,
            ..TcpLimits::default()
        }
    }

    /// Returns a connection, the zero of its clock, and a function that returns its next step at a
    /// given second.
    fn connection() -> (Activity, Instant, impl Fn(&Activity, u32) -> NextStep) {
        let start = Instant::now();
        let step =
            move |activity: &Activity, second| activity.next_step(start + second * S, &limits());
        (Activity::new(start), start, step)
    }

    #[test]
    fn a_first_request_has_less_time_than_a_later_one() {
        let (activity, start, step) = connection();
        assert_eq!(step(&activity, 0), NextStep::CheckAt(start + 30 * S));
        assert_eq!(step(&activity, 30), NextStep::Close);
        let exchange = activity.begin();
        activity.received(exchange);
        assert!(matches!(step(&activity, 500), NextStep::CheckAt(_)), "the server answers");
        activity.end(exchange, start + 500 * S);
        assert_eq!(step(&activity, 559), NextStep::CheckAt(start + 560 * S));
        assert_eq!(step(&activity, 560), NextStep::Close);
    }

    #[test]
    fn an_unread_response_closes_the_connection_but_spares_the_others_on_it() {
        let (activity, start, step) = connection();
        let (stalled, answered) = (activity.begin(), activity.begin());
        activity.note(stalled, ExchangePhase::Sending { since: start });
        activity.note(answered, ExchangePhase::Answering);
        assert_eq!(step(&activity, 39), NextStep::CheckAt(start + 40 * S));
        assert_eq!(step(&activity, 40), NextStep::Close);
        activity.close(start + 40 * S, false);
        assert!(matches!(step(&activity, 400), NextStep::CheckAt(_)), "one is still answered");
        activity.end(answered, start + 400 * S);
        assert_eq!(step(&activity, 401), NextStep::Abandon);
    }

    #[test]
    fn a_shutdown_waits_for_answers_and_not_for_bodies() {
        let (activity, start, step) = connection();
        let (body, answer) = (activity.begin(), activity.begin());
        activity.received(answer);
        activity.close(start, true);
        assert!(matches!(step(&activity, 10), NextStep::CheckAt(_)));
        activity.end(answer, start + 10 * S);
        assert_eq!(step(&activity, 10), NextStep::Abandon);
        let (alone, start, step) = connection();
        alone.begin();
        alone.close(start, false);
        assert!(matches!(step(&alone, 10), NextStep::CheckAt(_)), "a body has its own deadline");
        activity.end(body, start);
    }

    #[test]
    fn what_is_still_written_is_not_idle() {
        let (activity, start, step) = connection();
        let exchange = activity.begin();
        activity.note_unread(Some(start));
        activity.end(exchange, start);
        activity.close(start, true);
        assert!(matches!(step(&activity, 39), NextStep::CheckAt(_)), "the client reads slowly");
        assert_eq!(step(&activity, 40), NextStep::Abandon);
        activity.note_unread(None);
        assert_eq!(step(&activity, 39), NextStep::Abandon, "nothing is left to be read");
    }
}
