//! The link emulator with real sockets: the model decides, nothing else; root where needed.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use loquent_bench::link::emulator::{PathLinks, PathSchedule};
use loquent_bench::link::observer::{PacketObserver, PacketRecord};
use loquent_bench::link::packet_stats::LinkSummary;
use loquent_bench::link::relay::LinkRelay;
use loquent_bench::link::tun::{self, Ends, Paths};
use loquent_bench::link::udp::UdpWire;
use loquent_bench::link::{LinkError, forward};
use loquent_sim::channel::{Channel, Direction, LossSchedule};
use loquent_sim::link::{HEADER_BYTES, Link, LinkState};
use serde_json::Value;

const SEED: u64 = 11;
const LENGTH_US: u64 = 60_000_000;
const WITHIN: Option<Duration> = Some(Duration::from_secs(60));
/// Ends the numbered datagrams of [`ping`]; of another length than theirs.
const MARKER: &[u8] = b"marker";
/// A numbered datagram with its IPv4 and UDP headers.
const NUMBERED_BYTES: usize = 20 + 8 + 4;

fn lossy(rtt_ms: f64) -> Link {
    let channel = Channel::Markov { stay_good: 0.8, stay_lossy: 0.8, loss: 0.9, state_ms: 20.0 };
    Link::new(rtt_ms, channel)
}

fn schedule(link: &Link) -> PathSchedule {
    PathSchedule::new(link.clone(), SEED, LENGTH_US, Vec::new())
}

/// Sends numbered datagrams to `to`, which sends them back, and returns the numbers that came.
///
/// Markers follow until one comes back. The link keeps the order, so nothing that was sent before
/// a marker can arrive after it: no time limit has to guess when the last number is in.
fn ping(socket: &UdpSocket, to: SocketAddr, count: u32) -> BTreeSet<u32> {
    let receiver = socket.try_clone().unwrap();
    receiver.set_read_timeout(WITHIN).unwrap();
    let listen = std::thread::spawn(move || {
        let mut seen = BTreeSet::new();
        let mut buffer = [0; 64];
        loop {
            let (len, _) = receiver.recv_from(&mut buffer).expect("a marker comes back");
            match buffer[..len].try_into() {
                Ok(number) => seen.insert(u32::from_be_bytes(number)),
                Err(_) => return seen,
            };
        }
    });
    for number in 0..count {
        socket.send_to(&number.to_be_bytes(), to).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    while !listen.is_finished() {
        socket.send_to(MARKER, to).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    listen.join().unwrap()
}

/// Sends every datagram back until one says "stop".
fn echo(socket: UdpSocket) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            if buffer[..len] == *b"stop" {
                return;
            }
            socket.send_to(&buffer[..len], from).unwrap();
        }
    })
}

/// Packets of a record, by direction: up, then down.
#[derive(Debug, Default)]
struct Replayed {
    /// Numbered datagrams that entered the link.
    numbered: [usize; 2],
    /// Numbered datagrams that got through.
    numbered_through: [usize; 2],
    /// Packets of any kind that got through.
    through: [usize; 2],
}

/// Replays a record through the simulator's model: every fate must be the same.
fn replay(record: &str, link: &Link) -> Replayed {
    let losses = LossSchedule::new(&link.channel, SEED, LENGTH_US);
    let mut path = LinkState::new(link, &losses, SEED, LENGTH_US);
    let mut replayed = Replayed::default();
    for line in record.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let (at, direction) = match line["direction"] == "up" {
            true => (0, Direction::Up),
            false => (1, Direction::Down),
        };
        let bytes = line["bytes"].as_u64().unwrap() as usize;
        let payload = bytes.saturating_sub(HEADER_BYTES);
        let fate = path.send(line["at_us"].as_u64().unwrap(), payload, direction);
        let due_us = fate.arrivals[0].map(|arrival| arrival.at_us);
        assert_eq!(line["due_us"].as_u64(), due_us, "{line}");
        let is_numbered = bytes == NUMBERED_BYTES;
        replayed.numbered[at] += usize::from(is_numbered);
        replayed.numbered_through[at] += usize::from(is_numbered && due_us.is_some());
        replayed.through[at] += usize::from(due_us.is_some());
    }
    replayed
}

fn check_losses(seen: &BTreeSet<u32>, sent: u32, record: &str, link: &Link, summary: &LinkSummary) {
    let replayed = replay(record, link);
    let [to_client, to_server] = &summary.paths[0];
    assert_eq!(replayed.numbered[0], sent as usize, "every datagram was counted");
    assert_eq!(to_server.packets - to_server.lost, replayed.through[0] as u64);
    assert_eq!(to_client.packets - to_client.lost, replayed.through[1] as u64);
    let down = replayed.numbered_through[1];
    assert_eq!(seen.len(), down, "what the model delivers arrives, and nothing else");
    assert!(to_server.lost > sent as u64 / 10, "{to_server:?}");
}

#[test]
fn a_udp_relay_loses_what_the_simulator_loses() {
    let link = lossy(40.0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("packets.jsonl");
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = server.local_addr().unwrap();
    let echo = echo(server);
    let door = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = door.local_addr().unwrap();
    let wire = UdpWire::new(vec![(door, to)]).unwrap();
    let record = Some(PacketRecord::to(File::create(&file).unwrap()));
    let relay = LinkRelay::start(wire, vec![schedule(&link)], record).unwrap();
    relay.begin(0, Instant::now());
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    let seen = ping(&client, address, 400);
    let summary = relay.stop().unwrap();
    client.send_to(b"stop", to).unwrap();
    echo.join().unwrap();
    let record = std::fs::read_to_string(&file).unwrap();
    check_losses(&seen, 400, &record, &link, &summary);
}

#[test]
fn a_udp_relay_keeps_clients_and_paths_apart() {
    let servers = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let doors = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let addresses = doors.each_ref().map(|door| door.local_addr().unwrap());
    let targets = servers.each_ref().map(|server| server.local_addr().unwrap());
    let wire = UdpWire::new(doors.into_iter().zip(targets).collect()).unwrap();
    let schedules = vec![schedule(&Link::new(4.0, Channel::Clean)); 2];
    let _relay = LinkRelay::start(wire, schedules, None).unwrap();
    let mut peers = BTreeSet::new();
    for (address, server) in addresses.iter().zip(&servers) {
        server.set_read_timeout(WITHIN).unwrap();
        for name in [b"a", b"b"] {
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client.set_read_timeout(WITHIN).unwrap();
            client.send_to(name, address).unwrap();
            let mut buffer = [0; 8];
            let (len, from) = server.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], name);
            assert!(peers.insert(from), "each client has a port of its own");
            server.send_to(b"answer", from).unwrap();
            let (len, _) = client.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], b"answer");
        }
    }
}

/// Sends three datagrams to `to` and returns how many of them come back. Those that may are waited
/// for `within` a time. Nothing tells when a lost one is lost.
fn come_back(socket: &UdpSocket, to: SocketAddr, within: Option<Duration>) -> usize {
    for number in 0..3 {
        socket.send_to(&[number], to).unwrap();
    }
    socket.set_read_timeout(within).unwrap();
    (0..3).map_while(|_| socket.recv_from(&mut [0; 8]).ok()).count()
}

#[test]
fn a_change_of_the_links_calms_them_until_they_begin_again() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = server.local_addr().unwrap();
    let echo = echo(server);
    let door = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = door.local_addr().unwrap();
    let dead = || schedule(&Link::new(4.0, Channel::Random { loss: 1.0 }));
    let relay = LinkRelay::start(UdpWire::new(vec![(door, to)]).unwrap(), vec![dead()], None);
    let relay = relay.unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..2 {
        let all = come_back(&client, address, WITHIN);
        assert_eq!(all, 3, "nothing is lost before the beginning");
        relay.begin(0, Instant::now());
        assert_eq!(come_back(&client, address, Some(Duration::from_secs(2))), 0);
        relay.change(PathLinks::Own(vec![dead()]));
    }
    // What comes back shows that the last change has been made.
    assert_eq!(come_back(&client, address, WITHIN), 3);
    let [down, up] = relay.stop().unwrap().paths.remove(0);
    assert_eq!((down.packets, up.packets), (0, 0), "a change resets the counters until it begins");
    client.send_to(b"stop", to).unwrap();
    echo.join().unwrap();
}

/// Two namespaces, or why there are none.
fn namespaces(link: &Link, record: Option<Box<dyn PacketObserver>>) -> Option<(Ends, LinkRelay)> {
    match tun::create(Paths::One) {
        Ok((ends, wire)) => {
            let relay = LinkRelay::start(wire, vec![schedule(link)], record).unwrap();
            Some((ends, relay))
        }
        Err(error @ (LinkError::Privilege { .. } | LinkError::Network { .. })) => {
            loquent_needs::Need::Namespaces.lack(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn packets_between_namespaces_are_delayed_and_lost_as_the_simulator_says() {
    let link = lossy(60.0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("packets.jsonl");
    let Some((ends, relay)) =
        namespaces(&link, Some(PacketRecord::to(File::create(&file).unwrap())))
    else {
        return;
    };
    let bind = || UdpSocket::bind("0.0.0.0:7000").unwrap();
    let server = ends.server.within(bind).unwrap();
    let client = ends.client.within(bind).unwrap();
    let echo = echo(server);
    let to = SocketAddr::from((tun::SERVER, 7000));
    // Before its schedule begins the link loses nothing, so one round trip can be timed.
    client.set_read_timeout(WITHIN).unwrap();
    let began = Instant::now();
    client.send_to(b"time", to).unwrap();
    client.recv_from(&mut [0; 8]).unwrap();
    let took = began.elapsed();
    println!("round trip {took:?} over a link of 60 ms");
    assert!(took >= Duration::from_millis(60), "{took:?}");
    relay.begin(0, Instant::now());
    let seen = ping(&client, to, 400);
    let stop = ends.server.within(|| UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
    stop.send_to(b"stop", "127.0.0.1:7000").unwrap();
    echo.join().unwrap();
    let summary = relay.stop().unwrap();
    print!("{}", summary.text());
    check_losses(&seen, 400, &std::fs::read_to_string(&file).unwrap(), &link, &summary);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_outside_is_reached_over_tcp_and_udp() {
    let link = Link::new(20.0, Channel::Clean);
    let Some((ends, _relay)) = namespaces(&link, None) else {
        return;
    };
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = tcp.local_addr().unwrap();
    let udp = UdpSocket::bind(to).unwrap();
    forward::forward(&ends.server, to).unwrap();
    let echo = echo(udp.try_clone().unwrap());
    let inside = SocketAddr::from((tun::SERVER, to.port()));
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = tcp.accept().unwrap();
        let mut question = String::new();
        stream.read_to_string(&mut question).unwrap();
        stream.write_all(question.to_uppercase().as_bytes()).unwrap();
    });
    let asked = ends.client.within(|| {
        let mut stream = TcpStream::connect(inside).unwrap();
        stream.set_read_timeout(WITHIN).unwrap();
        stream.write_all(b"tokens").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        socket.set_read_timeout(WITHIN).unwrap();
        socket.send_to(b"datagram", inside).unwrap();
        let mut buffer = [0; 16];
        let (len, _) = socket.recv_from(&mut buffer).unwrap();
        (answer, buffer[..len].to_vec())
    });
    assert_eq!(asked.unwrap(), ("TOKENS".to_owned(), b"datagram".to_vec()));
    answer.join().unwrap();
    UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"stop", to).unwrap();
    echo.join().unwrap();
}
