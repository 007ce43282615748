//! Tells whoever starts `loquent connect` whether its server can be reached, and how answers come.
//! A server that cannot be reached may start later, so it is asked again until it responds.

use std::time::Duration;

use loquent_client::{Client, Transport};
use loquent_openai::HttpError;
use loquent_proto::printable::printable;

/// How long the server may take to respond before it counts as unreachable.
const RESPONSE_LIMIT: Duration = Duration::from_secs(10);
/// How long to wait before the server is asked again: doubled each time, up to the second.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// Maximum size of the response, of which nothing is used.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// Says how answers of the server come, once it can be reached, and before that why it cannot.
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
            eprintln!(
                "{} cannot be reached: {}. {} Requests get an error until it responds; it is asked \
                 again now and then.",
                printable(client.url()),
                printable(&why),
                advice(&why)
            );
        }
        said = true;
        tokio::time::sleep(wait).await;
        wait = (2 * wait).min(longest);
    };
    if said {
        eprintln!("{} can be reached now.", printable(client.url()));
    }
    match transport {
        Transport::Quic => eprintln!("Answers come over QUIC."),
        Transport::Http => eprintln!("Answers come over HTTP; QUIC has not got through (yet)."),
    }
}

/// What to do about the failure `why`.
fn advice(why: &str) -> &'static str {
    match why.contains("certificate") {
        true => {
            "Check that this machine trusts who signed its certificate; SSL_CERT_FILE names a file \
             with other authorities."
        }
        false => "Check the URL, and whether a server runs there.",
    }
}

/// Why the server does not respond; `None` if it does, whatever it says.
async fn failure(client: &Client) -> Option<String> {
    let asked = client.http().get("/health", MAX_RESPONSE_BYTES);
    match tokio::time::timeout(RESPONSE_LIMIT, asked).await {
        Ok(Ok(_) | Err(HttpError::Refused { .. } | HttpError::TooLarge { .. })) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("it has not responded within {} s", RESPONSE_LIMIT.as_secs())),
    }
}
