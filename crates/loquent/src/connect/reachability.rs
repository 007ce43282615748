//! Reports to the user of `loquent connect` whether its server can be reached, and over which
//! transport. An unreachable server may start later, so it is polled until it responds.

use std::time::Duration;

use loquent_client::{Client, Transport};
use loquent_openai::HttpError;
use loquent_proto::printable::printable;

use crate::logging;
use crate::trust;

/// Time limit for a response, after which the server counts as unreachable.
const RESPONSE_LIMIT: Duration = Duration::from_secs(10);
/// First and maximum wait between attempts; doubles each time.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// Maximum size of the response, whose content is not used.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// Reports the transport of the server's answers once it can be reached, and before that the reason
/// why it cannot.
pub(super) async fn report(client: Client) {
    let ([mut wait, longest], mut said) = (RETRY, false);
    let transport = loop {
        let transport = client.warm_up().await;
        // Over QUIC it has responded already.
        let why = match transport {
            Transport::Quic => None,
            Transport::Http => failure(&client).await,
        };
        let Some(why) = why else { break transport };
        if !said {
            logging::warn(&format!(
                "{} cannot be reached: {}. {} Requests get an error until it responds; it is asked \
                 again now and then.",
                printable(client.url()),
                printable(&why),
                advice(&why)
            ));
        }
        said = true;
        tokio::time::sleep(wait).await;
        wait = (2 * wait).min(longest);
    };
    if said {
        logging::say(&format!("{} can be reached now.", printable(client.url())));
    }
    logging::say(match transport {
        Transport::Quic => "Answers come over QUIC.",
        Transport::Http => "Answers come over HTTP; QUIC has not got through (yet).",
    });
}

/// Returns advice about the failure `why`.
fn advice(why: &str) -> &'static str {
    match why.contains("certificate") {
        true => trust::ADVICE,
        false => "Check the URL, and whether a server runs there.",
    }
}

/// Returns the reason why the server does not respond; `None` if it sends any response.
async fn failure(client: &Client) -> Option<String> {
    let asked = client.http().get("/health", MAX_RESPONSE_BYTES);
    match tokio::time::timeout(RESPONSE_LIMIT, asked).await {
        Ok(Ok(_) | Err(HttpError::Refused { .. } | HttpError::TooLarge { .. })) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("it has not responded within {} s", RESPONSE_LIMIT.as_secs())),
    }
}
