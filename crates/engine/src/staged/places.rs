//! Network places of stages: replicas in a list, and addresses that a name resolves to.
//!
//! An address is `host:port`. If its name has several addresses, a *place* selects one of them:
//! `host:port@ip:port`. The name is kept, since certificates are for names.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// Separates the addresses of a stage's replicas.
const REPLICA_MARK: char = '|';
/// Separates an address from the selected one of its name's addresses.
const PLACE_MARK: char = '@';
/// Maximum addresses of a name that are tried: each may take as long as a handshake may.
const MOST_PLACES: usize = 16;

/// Returns the places to try for a stage with these `addresses`, in turn: starting with `last`, or
/// behind a `dead_end`, which then comes last.
pub(super) fn of_stage(addresses: &str, last: &str, dead_end: Option<&str>) -> Vec<String> {
    let mut places: Vec<String> =
        addresses.split(REPLICA_MARK).flat_map(|address| of_name(address.trim())).collect();
    let place_of = |wanted: &str| places.iter().position(|place| place == wanted);
    let behind = dead_end.and_then(place_of).map(|at| at + 1);
    if let Some(at) = behind.or_else(|| place_of(last)) {
        places.rotate_left(at);
    }
    places
}

/// Returns the places of `address`. A name that cannot be resolved is returned as it is, so that
/// dialling it gives the error.
fn of_name(address: &str) -> Vec<String> {
    match resolve(address) {
        Ok(found) if found.len() > 1 => {
            found.iter().map(|place| format!("{address}{PLACE_MARK}{place}")).collect()
        }
        _ => vec![address.to_owned()],
    }
}

/// Name and port of a place, for certificates and for people.
pub(super) fn name(place: &str) -> &str {
    place.split_once(PLACE_MARK).map_or(place, |(name, _)| name)
}

/// Returns the distinct socket addresses of a place or an address.
///
/// # Errors
/// Errors of the operating system's resolver.
pub(super) fn resolve(place: &str) -> io::Result<Vec<SocketAddr>> {
    let found = match place.split_once(PLACE_MARK) {
        Some((_, place)) => place.to_socket_addrs()?,
        None => place.to_socket_addrs()?,
    };
    let mut places: Vec<SocketAddr> = Vec::new();
    for place in found.take(MOST_PLACES) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_tried_from_the_last_one_on() {
        let listed = "127.0.0.1:1| 127.0.0.1:2|127.0.0.1:3";
        let one = |n| format!("127.0.0.1:{n}");
        let of = |last: &str| of_stage(listed, last, None);
        assert_eq!(of(""), [one(1), one(2), one(3)]);
        assert_eq!(of("127.0.0.1:2"), [one(2), one(3), one(1)]);
        assert_eq!(of("127.0.0.1:9"), [one(1), one(2), one(3)]);
        assert_eq!(of_stage("no such name:1", "", None), ["no such name:1"]);
        let behind = |dead_end: &str| of_stage(listed, "127.0.0.1:1", Some(dead_end));
        assert_eq!(behind("127.0.0.1:2"), [one(3), one(1), one(2)]);
        assert_eq!(behind("127.0.0.1:3"), [one(1), one(2), one(3)]);
        assert_eq!(behind("127.0.0.1:9"), [one(1), one(2), one(3)]);
    }

    #[test]
    fn a_place_keeps_the_name_for_the_certificate() {
        let place = "stages.example:7070@127.0.0.1:7070";
        assert_eq!(name(place), "stages.example:7070");
        assert_eq!(resolve(place).unwrap(), ["127.0.0.1:7070".parse::<SocketAddr>().unwrap()]);
        assert_eq!(name("127.0.0.1:7"), "127.0.0.1:7");
    }
}
