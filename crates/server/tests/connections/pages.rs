//! Which names and which web pages may use the server, over every version of HTTP.

use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use loquent_server::{AllowedHosts, TrustedProxies};
use tokio::net::TcpListener;

use super::harness::*;

const CHAT: &str = r#"{"messages": [{"role": "user", "content": "tokens=1"}]}"#;

/// The status and the response to a chat request with `headers`.
async fn ask(server: &Server, headers: &[(&str, &str)]) -> (u16, String) {
    exchange(server.connect().await, "POST", "/v1/chat/completions", headers, CHAT).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebound_name_is_refused() {
    let server = Server::start(limits()).await;
    let rebound = [("host", "evil.example:8080"), ("origin", "http://evil.example:8080")];
    let (status, text) = ask(&server, &rebound).await;
    assert_eq!(status, 403, "{text}");
    assert!(text.contains("--allowed-host evil.example"), "{text}");
    assert!(!text.contains("access-control-allow-origin"), "{text}");
    for path in ["/v1/models", "/v1/delivery", "/metrics", "/health", "/", "/nowhere"] {
        assert_eq!(server.get(path, &[("host", "evil.example")]).await.0, 403, "{path}");
    }
    for host in ["localhost:8080", "127.0.0.1", "[::1]:1"] {
        assert_eq!(server.get("/v1/models", &[("host", host)]).await.0, 200, "{host}");
    }
    let twice = [("host", "localhost"), ("host", "evil.example")];
    assert_eq!(server.get("/v1/models", &twice).await.0, 403);
    let (status, _) = server.get("http://evil.example/v1/models", &[]).await;
    assert_eq!(status, 403, "the request's target names the server as well");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_the_operator_lists_are_answered() {
    let server = Server::start_with(|config| {
        config.http.allowed_hosts = AllowedHosts::new(["box.example".to_owned()]);
    })
    .await;
    for (host, status) in [("box.example:8080", 200), ("BOX.example", 200), ("a.example", 403)] {
        assert_eq!(server.get("/v1/models", &[("host", host)]).await.0, status, "{host}");
    }
    let open = open_to_others().await;
    assert_eq!(open.get("/v1/models", &[("host", "any.example")]).await.0, 200);
}

/// Starts a server that other machines reach; it is asked from this one.
async fn open_to_others() -> Server {
    let open = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = open.local_addr().unwrap().port();
    let mut server = Server::start_on(open, |_| {}).await;
    server.address = ([127, 0, 0, 1], port).into();
    server
}

/// Without a list of names any is answered, also one that a page has pointed at this machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebound_name_is_not_this_machine() {
    let server = open_to_others().await;
    for (host, is_refused) in [("evil.example", true), ("localhost", false), ("127.0.0.1", false)] {
        assert_eq!(unload(&server, &[("host", host)]).await == 403, is_refused, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_proxy_passes_on_is_not_of_this_machine() {
    let server = Server::start(limits()).await;
    assert_ne!(unload(&server, &[]).await, 403);
    assert_eq!(server.get("/v1/chat/completions", &[]).await.0, 200);
    for header in [("x-forwarded-for", "127.0.0.1"), ("forwarded", "for=_a"), ("via", "1.1 a")] {
        assert_eq!(unload(&server, &[header]).await, 403, "{header:?}");
    }
    let named = Server::start_with(|config| {
        config.http.allowed_hosts = AllowedHosts::new(["llm.example".to_owned()]);
    })
    .await;
    let trusting = Server::start_with(|config| {
        config.http.trusted_proxies = TrustedProxies::new(vec!["10.0.0.1".parse().unwrap()]);
    })
    .await;
    let public = [("host", "llm.example")];
    assert_eq!(unload(&named, &public).await, 403);
    assert_eq!(named.get("/v1/chat/completions", &public).await.0, 403, "a list of all chats");
    assert_eq!(trusting.get("/v1/chat/completions", &[]).await.0, 403);
    assert_ne!(unload(&named, &[]).await, 403, "by one of this machine's own names");
}

/// The status for a client without a key that wants to unload a model.
async fn unload(server: &Server, headers: &[(&str, &str)]) -> u16 {
    let body = r#"{"model": "none"}"#;
    exchange(server.connect().await, "POST", "/v1/models/unload", headers, body).await.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_of_an_http2_request_counts() {
    let certificate = Certificate::new("authority");
    let source = certificate.source();
    let server = Server::start_with(|config| config.https = Some(source)).await;
    let page = format!("https://localhost:{}", server.address.port());
    let statuses = [
        (page.clone(), Some(page.as_str()), 200),
        (page.clone(), None, 200),
        (page.clone(), Some("https://evil.example"), 403),
        ("https://evil.example".to_owned(), Some("https://evil.example"), 403),
        ("https://evil.example".to_owned(), None, 403),
    ];
    for (authority, origin, expected) in statuses {
        let stream = certificate.connect(&server, &[b"h2"]).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (mut client, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = http::Request::post(format!("{authority}/v1/chat/completions"));
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        let request = request.body(Full::new(Bytes::from(CHAT))).unwrap();
        let response = client.send_request(request).await.unwrap();
        assert_eq!(response.status(), expected, "{authority} {origin:?}");
        response.into_body().collect().await.unwrap();
    }
}

/// A header's value in a response's text.
fn header<'a>(response: &'a str, name: &str) -> Option<&'a str> {
    let head = response.split("\r\n\r\n").next().unwrap();
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(given, _)| *given == name).map(|(_, value)| value)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_this_machine_may_use_a_server_of_this_machine() {
    let server = Server::start_with(|config| {
        config.http.api_keys = loquent_server::ApiKeys::new(["secret".to_owned()]);
    })
    .await;
    let origin = ("origin", "http://localhost:3000");
    let asked = "authorization,content-type,x-stainless-os,x-stainless-retry-count";
    let preflight = [
        origin,
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", asked),
        ("access-control-request-private-network", "true"),
    ];
    let connection = server.connect().await;
    let (status, text) =
        exchange(connection, "OPTIONS", "/v1/chat/completions", &preflight, "").await;
    assert_eq!(status, 204, "{text}");
    let allowed = header(&text, "access-control-allow-headers").unwrap();
    assert_eq!(allowed.replace(", ", ","), asked);
    assert_eq!(header(&text, "access-control-allow-origin"), Some(origin.1));
    assert_eq!(header(&text, "access-control-max-age"), Some("7200"));
    assert_eq!(header(&text, "access-control-allow-private-network"), Some("true"));
    // Without a key, to nowhere, malformed, and too large: pages may read why.
    let large = "x".repeat(2 << 20);
    let key = ("authorization", "Bearer secret");
    let refused = [
        ("POST", "/v1/chat/completions", vec![origin], CHAT, 401),
        ("GET", "/nowhere", vec![origin], "", 404),
        ("PUT", "/health", vec![origin], "", 405),
        ("POST", "/v1/chat/completions", vec![origin, key], "{", 400),
        ("POST", "/v1/chat/completions", vec![origin, key], large.as_str(), 413),
        ("POST", "/v1/chat/completions", vec![origin, key], CHAT, 200),
    ];
    for (method, path, headers, body, expected) in refused {
        let connection = server.connect().await;
        let (status, text) = exchange(connection, method, path, &headers, body).await;
        assert_eq!(status, expected, "{text}");
        assert_eq!(header(&text, "access-control-allow-origin"), Some(origin.1), "{expected}");
        assert_eq!(header(&text, "vary"), Some("Origin"));
    }
    for app in ["app://obsidian.md", "tauri://localhost"] {
        let (status, text) = ask(&server, &[("origin", app), key]).await;
        assert_eq!(status, 200, "{app}");
        assert_eq!(header(&text, "access-control-allow-origin"), Some(app));
    }
    for foreign in ["https://evil.example", "null", "http://localhost.evil.example"] {
        let (status, text) = ask(&server, &[("origin", foreign), key]).await;
        assert_eq!(status, 403, "{foreign}");
        assert_eq!(header(&text, "access-control-allow-origin"), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_this_machine_are_foreign_to_a_server_for_others_and_apps_are_not() {
    let server = open_to_others().await;
    let headers = [("host", "a.example"), ("origin", "http://localhost:3000")];
    assert_eq!(ask(&server, &headers).await.0, 403);
    for allowed in ["http://a.example", "app://obsidian.md", "tauri://localhost"] {
        let headers = [("host", "a.example"), ("origin", allowed)];
        assert_eq!(ask(&server, &headers).await.0, 200, "{allowed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_response_keeps_browsers_from_guessing() {
    let server = Server::start(limits()).await;
    for path in ["/", "/favicon.svg", "/health", "/v1/models", "/metrics", "/nowhere"] {
        let (_, text) = server.get(path, &[]).await;
        assert_eq!(header(&text, "x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(header(&text, "referrer-policy"), Some("no-referrer"), "{path}");
        assert_eq!(header(&text, "cross-origin-resource-policy"), Some("same-origin"), "{path}");
        let policy = header(&text, "content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'"), "{path}: {policy}");
        assert!(!policy.contains('*'), "{path}: {policy}");
    }
    let (_, page) = server.get("/", &[]).await;
    assert_eq!(header(&page, "cross-origin-opener-policy"), Some("same-origin"));
    assert!(header(&page, "permissions-policy").unwrap().contains("camera=()"));
}

/// The file that the chat page names as its script.
fn script(page: &str) -> String {
    let (_, rest) = page.split_once("type=\"module\" src=\"").expect("a script");
    format!("/{}", rest.split('"').next().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_are_asked_for_again_and_what_they_load_is_kept() {
    let server = Server::start(limits()).await;
    for page in ["/", "/lab", "/dashboard"] {
        let (status, text) = server.get(page, &[]).await;
        assert_eq!(status, 200, "{page}");
        assert_eq!(header(&text, "cache-control"), Some("no-cache"), "{page}");
        let tag = header(&text, "etag").unwrap();
        let (status, again) = server.get(page, &[("if-none-match", tag)]).await;
        assert_eq!(status, 304, "{page}");
        assert!(again.ends_with("\r\n\r\n"), "{page}: nothing is sent again");
        let (status, text) = server.get(&script(&text), &[]).await;
        assert_eq!(status, 200, "{page}");
        assert!(header(&text, "cache-control").unwrap().contains("immutable"), "{page}");
    }
}
