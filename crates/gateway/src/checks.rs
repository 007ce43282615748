//! Periodic health checks of an upstream's servers: each server is checked every two seconds,
//! staggered over that interval, as long as the upstream is in use.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::pool::Pool;

/// Pause between two checks of a server.
const INTERVAL: Duration = Duration::from_secs(2);

/// Starts checking each server of `pool`. The tasks end with the pool.
pub fn start(pool: &Arc<Pool>) {
    for server in 0..pool.servers.len() {
        // Spread over the interval, so that servers behind one address are not asked at once.
        let delay = INTERVAL * server as u32 / pool.servers.len() as u32;
        tokio::spawn(keep_checking(Arc::downgrade(pool), server, delay));
    }
}

async fn keep_checking(pool: Weak<Pool>, server: usize, delay: Duration) {
    tokio::time::sleep(delay).await;
    while let Some(pool) = pool.upgrade() {
        check(&pool, server).await;
        drop(pool);
        tokio::time::sleep(INTERVAL).await;
    }
}

async fn check(pool: &Arc<Pool>, server: usize) {
    let asked = &pool.servers[server];
    let health = asked.check_health(pool.key(None)).await;
    let changed = pool.note_check(server, health.is_ok());
    let (server, upstream) = (asked.authority(), pool.label.as_str());
    match (changed, health) {
        (Some(_), Ok(())) => tracing::info!(server, upstream, "an upstream server is up again"),
        (Some(_), Err(why)) => tracing::warn!(server, upstream, why, "an upstream server is down"),
        (None, _) => {}
    }
}
