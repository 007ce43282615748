//! The task of one [`Relay`]: sends the request to one server after another, and gives the relay
//! the answer's bytes and the time.
//!
//! The task ends, and closes the upstream's connection, as soon as the client is gone.

use std::fmt::Display;
use std::ops::ControlFlow::{self, Break};
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Frame;
use loquent_openai::causes;
use loquent_openai::http::ResponseBody;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::breaker::RequestVerdict;
use super::dispatch::Dispatch;
use super::pool::UpstreamLease;
use super::relay::{Relay, RelayEnd, RelayEvent};
use loquent_serving::clock::Clock;
use loquent_serving::error::ApiError;
use loquent_serving::output::{BACKLOG_TICK, SHUTDOWN};

/// Largest error body that is passed on.
const MAX_ERROR_BYTES: usize = 1 << 20;
/// Time limit for the end of a complete answer's body, after which its connection is not reused.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Waits for the answer and passes it on by `relay` until it ends, the client leaves, or `shutdown`
/// is set.
pub async fn run(
    mut relay: Relay,
    clock: Clock,
    mut dispatch: Dispatch,
    mut shutdown: watch::Receiver<bool>,
) {
    // Why the server that began the answer has broken off.
    let mut interruption: Option<ApiError> = None;
    loop {
        let asked = ask_unless_left(&mut relay, &mut dispatch, &mut shutdown).await;
        let (mut body, place) = match asked {
            Some(Ok(answer)) => answer,
            Some(Err(error)) => return end_unanswered(&mut relay, clock, interruption, error),
            // The client has left with the beginning of its answer.
            None if interruption.is_some() => return relay.note_tokens(),
            None => return,
        };
        if interruption.is_some() && go_on(&mut relay, clock, &dispatch).is_break() {
            return relay.note_tokens();
        }
        let before = relay.all_tokens();
        let end = pass_on(&mut relay, clock, &mut body, &place, &mut shutdown).await;
        // Those of an earlier server count at its own place.
        place.note_tokens(relay.all_tokens().saturating_sub(before));
        match end {
            RelayEnd::Unanswered(error) => {
                note_broken(&place, &error);
                dispatch.note_unheard(error);
                continue;
            }
            RelayEnd::Interrupted(error) => {
                note_broken(&place, &error);
                drop((body, place));
                if is_continued(&mut relay, clock, &mut dispatch, &error) {
                    interruption = Some(error);
                    continue;
                }
                return relay.note_tokens();
            }
            RelayEnd::Broken => place.judge(RequestVerdict::Fails),
            RelayEnd::Complete => {
                place.judge(RequestVerdict::Works);
                relay.note_tokens();
                relay.pace().into_iter().for_each(|pace| place.note_pace(pace));
                drop((relay, place));
                return drain(body).await;
            }
            RelayEnd::Failed | RelayEnd::Left => {}
        }
        return relay.note_tokens();
    }
}

/// Records that the server of `place` has broken off because of `error`.
fn note_broken(place: &UpstreamLease, error: &ApiError) {
    place.note_failure(&error.to_string());
    place.judge(RequestVerdict::Fails);
}

/// Ends an answer with `error`, because no server gives it, or its rest after `interruption`.
fn end_unanswered(
    relay: &mut Relay,
    clock: Clock,
    interruption: Option<ApiError>,
    error: ApiError,
) {
    let Some(interruption) = interruption else { return drop(relay.fail(clock.now(), error)) };
    drop(relay.fail(clock.now(), not_continued(&interruption, &error)));
    relay.note_tokens();
}

/// Has the rest of an answer, which a server has broken off because of `error`, requested from
/// another one. Returns false if the answer ends here.
fn is_continued(
    relay: &mut Relay,
    clock: Clock,
    dispatch: &mut Dispatch,
    error: &ApiError,
) -> bool {
    match dispatch.continue_elsewhere(error, |body| relay.rest(body)) {
        Ok(true) => return true,
        Ok(false) => drop(relay.end_at_limit(clock.now())),
        Err(obstacle) => drop(relay.fail(clock.now(), not_continued(error, &obstacle))),
    }
    false
}

/// Prepares `relay` for the rest of its answer, from the server that `dispatch` has found.
fn go_on(relay: &mut Relay, clock: Clock, dispatch: &Dispatch) -> ControlFlow<RelayEnd> {
    let original = dispatch.original().expect("it was continued");
    relay.go_on(clock.now(), original, dispatch.fallback())
}

/// Returns the error of an answer that was broken off because of `interruption` and that no server
/// continues because of `obstacle`.
fn not_continued(interruption: &ApiError, obstacle: &impl Display) -> ApiError {
    tracing::warn!("an answer was not continued at another server: {obstacle}");
    let (interruption, obstacle) = (interruption.to_string(), obstacle.to_string());
    let sentences = [&interruption, &obstacle].map(|text| text.trim_end_matches('.'));
    let [interruption, obstacle] = sentences;
    ApiError::bad_gateway(format!(
        "{interruption}. No other server continues the answer: {obstacle}."
    ))
}

/// Gives `relay` the bytes of `body`, from the server of `place`, until the answer is over.
async fn pass_on(
    relay: &mut Relay,
    clock: Clock,
    body: &mut ResponseBody,
    place: &UpstreamLease,
    shutdown: &mut watch::Receiver<bool>,
) -> RelayEnd {
    let mut tick = tokio::time::interval(BACKLOG_TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    relay.begin(clock.now());
    loop {
        let (deadline, silent_at) = (relay.deadline(), relay.silent_at());
        let (takes_bytes, is_behind) = (relay.takes_bytes(), relay.is_behind());
        let event = tokio::select! {
            biased;
            () = relay.closed() => RelayEvent::Left,
            _ = shutdown.wait_for(|stop| *stop) => RelayEvent::Shutdown,
            frame = body.frame(), if takes_bytes => event_of(frame),
            () = sleep_until(clock, deadline.unwrap_or_default()), if deadline.is_some() => {
                RelayEvent::Deadline
            }
            _ = tick.tick(), if is_behind => RelayEvent::Tick,
            () = sleep_until(clock, silent_at) => RelayEvent::Silence,
        };
        let was_answered = relay.is_answered();
        let step = relay.handle(clock.now(), event);
        let begins = relay.is_answered() && !was_answered;
        // A short answer comes as a whole, and has ended by now.
        if begins {
            place.note_first_token();
        }
        if let Break(end) = step {
            return end;
        }
        if begins {
            place.note_begun();
        }
    }
}

fn event_of(frame: Option<Result<Frame<bytes::Bytes>, hyper::Error>>) -> RelayEvent {
    match frame {
        // Trailers say nothing.
        Some(Ok(frame)) => RelayEvent::Bytes(frame.into_data().unwrap_or_default()),
        Some(Err(error)) => RelayEvent::Broken(causes(&error)),
        None => RelayEvent::End,
    }
}

/// Sends a request until a server responds, as long as the client of `relay` is there.
async fn ask_unless_left(
    relay: &mut Relay,
    dispatch: &mut Dispatch,
    shutdown: &mut watch::Receiver<bool>,
) -> Option<Result<(ResponseBody, UpstreamLease), ApiError>> {
    let silence_limit = relay.silence_limit();
    tokio::select! {
        biased;
        () = relay.closed() => None,
        _ = shutdown.wait_for(|stop| *stop) => Some(Err(ApiError::internal(SHUTDOWN))),
        asked = ask(dispatch, silence_limit) => Some(asked),
    }
}

/// Sends a request until a server responds. A response that is not a success becomes an error.
async fn ask(
    dispatch: &mut Dispatch,
    silence_limit: Duration,
) -> Result<(ResponseBody, UpstreamLease), ApiError> {
    let (response, place) = dispatch.send().await?;
    let (head, body) = response.into_parts();
    if head.status.is_success() {
        return Ok((body, place));
    }
    let lost =
        |why: &str| ApiError::bad_gateway(format!("The upstream server's error is lost: {why}."));
    let body = Limited::new(body, MAX_ERROR_BYTES).collect();
    let body = tokio::time::timeout(silence_limit, body).await;
    let body = body.map_err(|_| lost("it takes too long"))?;
    let body = body.map_err(|error| lost(&error.to_string()))?;
    if head.status.is_client_error() {
        place.judge(RequestVerdict::Works);
    }
    Err(ApiError::passed_on(&head, body.to_bytes()))
}

/// Reads the rest of the body after a complete answer, so that its connection can be reused.
async fn drain(mut body: ResponseBody) {
    let reading = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, reading).await;
}

async fn sleep_until(clock: Clock, at: Duration) {
    tokio::time::sleep(at.saturating_sub(clock.now())).await;
}
