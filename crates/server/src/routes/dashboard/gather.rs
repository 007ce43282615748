//! Samples the server's figures once a second.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;

use crate::app::App;
use crate::dashboard::details;
use crate::dashboard::moment::{Moment, Stretch};
use crate::dashboard::sampler::INTERVAL;
use crate::models::ModelEntry;
use crate::service::Service;
use loquent_gateway::Upstream;
use loquent_serving::clock::unix_time_s;
use loquent_serving::metrics::StreamCarrier;

/// Samples the figures every second, forever.
pub async fn keep_sampled(app: Arc<App>) {
    let mut tick = tokio::time::interval(INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        sample(&app);
    }
}

/// Samples the figures at this moment.
pub(super) fn sample(app: &App) {
    let service = app.service();
    let at = app.clock.now();
    let moment = Moment {
        at,
        metrics: app.metrics.read(),
        links: [StreamCarrier::Quic, StreamCarrier::WebTransport]
            .map(|kind| app.links.figures(kind)),
        upstream_busy: service
            .and_then(|service| service.upstream())
            .map(|_| app.metrics.upstream_busy(at)),
        stages: service
            .and_then(|service| service.health().stages())
            .map(|stages| stages.figures()),
    };
    app.dashboard.take(moment, |stretch| describe(app, stretch));
}

fn describe(app: &App, stretch: &Stretch<'_>) -> Value {
    let service = app.service().map(AsRef::as_ref);
    let upstream = service.and_then(Service::upstream).map(|it| Upstream::label(it));
    let owners = app.config.api_keys.owners();
    json!({
        "unix_s": unix_time_s(),
        "uptime_s": stretch.now.at.as_secs(),
        "model": app.models.first().ok().map(ModelEntry::name),
        "models": details::models(&app.models),
        "trouble": app.ready().err().map(|error| error.to_string()),
        "transports": details::transports(stretch),
        "keys": (!owners.is_empty()).then(|| details::keys(&owners)),
        "stages": details::stages(stretch),
        "upstream": details::upstream(stretch, upstream),
    })
}
