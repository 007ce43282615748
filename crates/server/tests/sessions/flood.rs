//! Handshakes that never end: who floods the port proves an address first, and keeps nobody
//! else out (S-7.1, RFC 9000 §8.1).

use tokio::net::UdpSocket;

use super::harness::*;

/// Handshakes under way from which on the server answers with Retry.
const RETRY_BEYOND: usize = 64;

/// The first packet of a handshake that nobody will go on with.
async fn first_packet(certificate: [u8; 32]) -> Vec<u8> {
    let trap = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = client_config(certificate, loquent_server::ALPN, true);
    let to = trap.local_addr().unwrap();
    let _connecting = endpoint.connect_with(config, to, "localhost").unwrap();
    let mut packet = vec![0; 2_000];
    let (length, _) = trap.recv_from(&mut packet).await.unwrap();
    packet.truncate(length);
    packet
}

/// Whether the server's first word to `packet` is Retry (RFC 9000 §17.2.5).
async fn is_retried(server: &Server, packet: &[u8]) -> bool {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.send_to(packet, server.quic).await.unwrap();
    let mut answer = [0; 2_000];
    let heard = tokio::time::timeout(PATIENCE, socket.recv_from(&mut answer)).await;
    let (length, _) = heard.expect("an answer").unwrap();
    assert!(length <= 3 * packet.len(), "{length} bytes for {}", packet.len());
    answer[0] & 0xf0 == 0xf0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_handshakes_is_told_to_retry_and_keeps_nobody_out() {
    let server = start(Setup::default()).await;
    let mut retried = Vec::new();
    for _ in 0..RETRY_BEYOND + 30 {
        let packet = first_packet(server.certificate).await;
        retried.push(is_retried(&server, &packet).await);
    }
    let expected: Vec<bool> = (0..RETRY_BEYOND + 30).map(|at| at >= RETRY_BEYOND).collect();
    assert_eq!(retried, expected, "Retry from the bound on, and not before");
    // An honest client among them is served, by way of Retry.
    let (_endpoint, connection) =
        tokio::time::timeout(PATIENCE, connect(&server)).await.expect("a place");
    let mut reader = Reader::ask(&connection, 0, &chat(20, serde_json::json!({}))).await;
    reader.run(usize::MAX).await;
    assert!(reader.complete);
}
