//! Who may talk to the server, over real sockets.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;

const MARKUP: &str = "<img src=x onerror=alert(1)>";

fn fabric() -> Fabric {
    Fabric { name: MARKUP.into(), program: "/bin/echo".into(), ..Fabric::default() }
}

/// A server with these rights, its shared state and its path.
async fn server(access: Access) -> (Arc<Shared>, String) {
    let server = Server::bind(fabric(), access, 0).await.unwrap();
    let shared = Arc::clone(&server.shared);
    let path = format!("/{}/", shared.token);
    tokio::spawn(server.run(std::future::pending()));
    (shared, path)
}

async fn ask(shared: &Shared, request: &str) -> String {
    let mut stream = TcpStream::connect(shared.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn get(shared: &Shared, path: &str, headers: &str) -> String {
    ask(shared, &format!("GET {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n")).await
}

async fn post(shared: &Shared, path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\n{headers}Content-Length: {length}\r\n");
    ask(shared, &format!("{head}Connection: close\r\n\r\n{body}")).await
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap()
}

#[tokio::test]
async fn only_who_knows_the_secret_gets_an_answer() {
    let (shared, path) = server(Access::Full).await;
    let host = format!("Host: {}\r\n", shared.address);
    assert_eq!(status(&get(&shared, &path, &host).await), "200");
    let wrong = format!("/{}/", "0".repeat(shared.token.len()));
    for other in ["/", "//", "/state/1", "/fabric", &path[..path.len() - 2], &wrong, "/index.html"]
    {
        assert_eq!(status(&get(&shared, other, &host).await), "403", "{other}");
    }
    let wrong = format!("{wrong}run");
    let origin = format!("{host}Origin: http://{}\r\n", shared.address);
    let policy = r#"{"action": "policy", "policy": "qp-pin"}"#;
    assert_eq!(status(&post(&shared, &wrong, &origin, policy).await), "403");
}

#[tokio::test]
async fn other_names_and_origins_get_no_answer() {
    let (shared, path) = server(Access::Full).await;
    let (own, port) = (shared.address, shared.address.port());
    for host in [format!("localhost:{port}"), own.to_string()] {
        assert_eq!(status(&get(&shared, &path, &format!("Host: {host}\r\n")).await), "200");
    }
    for host in [format!("evil.example:{port}"), "127.0.0.1".into(), format!("127.0.0.1.x:{port}")]
    {
        let answer = get(&shared, &path, &format!("Host: {host}\r\n")).await;
        assert_eq!(status(&answer), "403", "{host}");
    }
    let run = format!("{path}run");
    let policy = r#"{"action": "policy", "policy": "qp-pin"}"#;
    for (origin, expected) in [
        (format!("Origin: http://{own}\r\n"), "200"),
        ("Origin: http://evil.example\r\n".into(), "403"),
        (format!("Origin: http://localhost:{port}\r\n"), "403"),
        ("Origin: null\r\n".into(), "403"),
        (String::new(), "403"),
    ] {
        let answer = post(&shared, &run, &format!("Host: {own}\r\n{origin}"), policy).await;
        assert_eq!(status(&answer), expected, "{origin}");
    }
}

#[tokio::test]
async fn read_only_pages_change_nothing() {
    let (shared, path) = server(Access::ReadOnly).await;
    let headers = format!("Host: {0}\r\nOrigin: http://{0}\r\n", shared.address);
    let policy = r#"{"action": "policy", "policy": "qp-pin"}"#;
    let answer = post(&shared, &format!("{path}run"), &headers, policy).await;
    assert_eq!(status(&answer), "403");
    assert!(answer.contains("--read-only"), "{answer}");
    assert!(shared.hub.part("jobs").is_none(), "no command has run");
}

#[tokio::test]
async fn an_action_runs_its_command_without_a_shell() {
    let (shared, path) = server(Access::Full).await;
    let headers = format!("Host: {0}\r\nOrigin: http://{0}\r\n", shared.address);
    let policy = r#"{"action": "policy", "policy": "$(id); `id`"}"#;
    let answer = post(&shared, &format!("{path}run"), &headers, policy).await;
    assert!(answer.contains(&format!("policy --name {MARKUP} $(id); `id`")), "{answer}");
}

#[tokio::test]
async fn answers_forbid_scripts_and_content_of_others() {
    let (shared, path) = server(Access::Full).await;
    let host = format!("Host: {}\r\n", shared.address);
    for file in FILES {
        let answer = get(&shared, &format!("{path}{}", file.0), &host).await;
        assert!(answer.contains("content-security-policy: default-src 'none'"), "{answer}");
        assert!(answer.contains("nosniff") && answer.contains("no-referrer"), "{answer}");
        let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
        assert!(!body.contains("innerHTML"), "{}", file.0);
    }
    // Names of others are JSON, which no browser interprets as a page.
    let answer = get(&shared, &format!("{path}fabric"), &host).await;
    assert!(answer.contains("content-type: application/json"), "{answer}");
    assert!(answer.contains(MARKUP), "{answer}");
}

#[tokio::test]
async fn a_page_that_does_not_read_holds_up_nobody() {
    let (shared, path) = server(Access::Full).await;
    let request = format!("GET {path}state/1 HTTP/1.1\r\nHost: {}\r\n\r\n", shared.address);
    let mut slow = TcpStream::connect(shared.address).await.unwrap();
    slow.write_all(request.as_bytes()).await.unwrap();
    let mut other = TcpStream::connect(shared.address).await.unwrap();
    other.write_all(request.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    let large = "x".repeat(1 << 20);
    for number in 0..40 {
        shared.hub.publish([("large", json!(format!("{number}{large}")))]);
        let wanted = format!("\"{number}xxx");
        let end = tokio::time::timeout(Duration::from_secs(5), async {
            let mut part = vec![0; 1 << 16];
            while !String::from_utf8_lossy(&read).contains(&wanted) {
                read.clear();
                let length = other.read(&mut part).await.unwrap();
                read.extend_from_slice(&part[..length]);
            }
            read.clear();
        });
        end.await.unwrap();
    }
    assert_eq!(shared.hub.pages(), 2);
    drop(slow);
    let gone = async {
        while shared.hub.pages() > 1 {
            shared.hub.publish([("large", json!(rand_text(shared.hub.pages())))]);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), gone).await.unwrap();
}

/// Whether the server has closed a connection.
async fn is_closed(stream: &mut TcpStream) -> bool {
    let mut part = [0; 512];
    let read = tokio::time::timeout(Duration::from_millis(1), stream.read(&mut part));
    matches!(read.await, Ok(Ok(0) | Err(_)))
}

#[tokio::test]
async fn strangers_take_no_page_away() {
    let (shared, path) = server(Access::Full).await;
    let own = format!("Host: {}\r\n", shared.address);
    let mut page = TcpStream::connect(shared.address).await.unwrap();
    let request = format!("GET {path}state/1 HTTP/1.1\r\n{own}\r\n");
    page.write_all(request.as_bytes()).await.unwrap();
    page.read_u8().await.unwrap();
    let begun = std::time::Instant::now();
    let mut strangers = Vec::new();
    for number in 0..200 {
        let mut stranger = TcpStream::connect(shared.address).await.unwrap();
        // Some say nothing, others do not come to an end or have another secret.
        let said = ["", "GET / HTTP/1.1\r\nX: ", "GET /x/ HTTP/1.1\r\n\r\n"][number % 3];
        stranger.write_all(said.as_bytes()).await.unwrap();
        strangers.push(stranger);
    }
    assert_eq!(status(&get(&shared, &path, &own).await), "200");
    let is_over = || begun.elapsed() > Duration::from_secs(4);
    let mut open = strangers.len();
    while open > 8 && !is_over() {
        open = 0;
        for stranger in &mut strangers {
            open += usize::from(!is_closed(stranger).await);
        }
    }
    assert!(open <= 8, "{open} connections of strangers stay");
    for stranger in &mut strangers {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(8), stranger.read_to_end(&mut rest));
        // It may be reset.
        let _ = ended.await.unwrap();
    }
    // The page has been open for longer than a stranger may be.
    assert!(begun.elapsed() > Duration::from_secs(4), "{:?}", begun.elapsed());
    shared.hub.publish([("late", json!("late news"))]);
    let mut news = String::new();
    let heard = async {
        while !news.contains("late news") {
            let mut part = [0; 4096];
            let length = page.read(&mut part).await.unwrap();
            assert!(length > 0, "{news}");
            news.push_str(&String::from_utf8_lossy(&part[..length]));
        }
    };
    tokio::time::timeout(Duration::from_secs(5), heard).await.unwrap();
}

fn rand_text(of: usize) -> String {
    format!("{of}{:?}", std::time::Instant::now())
}

#[tokio::test]
async fn a_stage_shows_one_fabric_after_the_other() {
    let (shared, path) = server(Access::ReadOnly).await;
    let stage = Stage::new(shared.shown.clone(), Arc::clone(&shared.hub));
    let host = format!("Host: {}\r\n", shared.address);
    let mut page = shared.hub.subscribe();
    stage.experiment(json!({"left": 2}));
    stage.fabric(Fabric { name: "second".into(), ..Fabric::default() });
    let answer = get(&shared, &format!("{path}fabric"), &host).await;
    assert!(answer.contains("\"second\"") && answer.contains("\"number\":1"), "{answer}");
    let mut events = String::new();
    let both = async {
        // The page learns that there is another fabric, and of the experiment.
        while !events.contains("\"fabric\":1") || !events.contains("{\"left\":2}") {
            let event = page.next().await.unwrap();
            events.push_str(&String::from_utf8_lossy(&event));
        }
    };
    tokio::time::timeout(Duration::from_secs(5), both).await.unwrap();
    // What does not come from the fabric stays when the last page closes.
    drop(page);
    shared.hub.forget();
    assert_eq!(shared.hub.part("experiment").as_deref(), Some(&json!({"left": 2})));
    assert_eq!(shared.hub.part("fabric").as_deref(), Some(&json!(1)));
}

/// A page can look at a queue pair while it is open, whatever its rights are.
#[tokio::test]
async fn only_open_pages_look_at_queue_pairs() {
    let (shared, path) = server(Access::ReadOnly).await;
    let headers = format!("Host: {0}\r\nOrigin: http://{0}\r\n", shared.address);
    let look = r#"{"page": 7, "at": {"from": "host1", "to": "host2", "queue_pair": 17}}"#;
    let place = format!("{path}look");
    assert_eq!(status(&post(&shared, &place, &headers, look).await), "409");
    let mut page = TcpStream::connect(shared.address).await.unwrap();
    let request = format!("GET {path}state/7 HTTP/1.1\r\nHost: {}\r\n\r\n", shared.address);
    page.write_all(request.as_bytes()).await.unwrap();
    page.read_u8().await.unwrap();
    assert_eq!(status(&post(&shared, &place, &headers, look).await), "200");
    assert_eq!(status(&post(&shared, &place, &headers, r#"{"page": 7, "at": {}}"#).await), "400");
    assert_eq!(status(&post(&shared, &place, "", look).await), "403");
}
