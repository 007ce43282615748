//! The options of `loquent link`, and its schedule: set up, run the commands, tell what happened.

use std::fs::File;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::process::Command;

use super::command::{self, ProcessGroup};
use super::emulator::PathSchedule;
use super::netns::Namespace;
use super::options::LinkOptions;
use super::relay::LinkRelay;
use super::tun::{self, Ends, Paths, SERVER};
use super::udp::UdpWire;
use super::{LinkError, forward};

const EXAMPLES: &str = "\
The commands run in two network namespaces that know nothing but each other and themselves; the \
server's address is 10.77.0.2, the client's 10.77.0.1 (also in $LOQUENT_LINK_SERVER and \
$LOQUENT_LINK_CLIENT). Both namespaces vanish with this program.

Examples:
  a question to the server on this machine's port 8080, over a bad network:
    loquent link --rtt 400 --loss default -- curl -N http://10.77.0.2:8080/v1/models
  server and client both inside; the client starts once the server listens:
    loquent link --rtt 100 --loss 2% --rate 1mbit --server 'loquent serve --host 0.0.0.0' \\
        --wait 8080 -- loquent chat --url http://10.77.0.2:8080
  a shell on the client's side; `nsenter` as printed enters from elsewhere:
    loquent link --loss bursts:900,100 --outage 10-13 -- bash
  without root, for QUIC alone: clients connect to port 9000
    loquent link --rtt 400 --loss default --udp-listen 127.0.0.1:9000 --udp-to 127.0.0.1:8080

The same seed loses the same packets of the same traffic, as in `loquent sim`. The exit status is \
the command's.";

/// Where requests go that reach the far side if nothing else is said: `loquent serve`'s default.
const DEFAULT_TO: &str = "127.0.0.1:8080";
/// The weather of a link repeats after so long.
const WEATHER_US: u64 = 3_600_000_000;
/// A server has so long to listen.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Emulate a bad network between two commands, with real packets (needs root, or UDP alone)
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct LinkArgs {
    #[command(flatten)]
    link: LinkOptions,
    /// Decides which packets are lost
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Shell command that runs on the far side; it must listen on 0.0.0.0
    #[arg(long, value_name = "COMMAND", help_heading = "Ends")]
    server: Option<String>,
    /// Start the client once the far side accepts TCP connections on this port
    #[arg(long, value_name = "PORT", help_heading = "Ends", conflicts_with = "udp_listen")]
    wait: Option<u16>,
    /// Lead the far side's TCP and UDP port of this number to this address outside; repeatable
    /// [default: 127.0.0.1:8080 if there is no --server]
    #[arg(long, value_name = "ADDRESS", help_heading = "Ends")]
    to: Vec<SocketAddr>,
    /// Without root: relay UDP that arrives here …
    #[arg(long, value_name = "ADDRESS", help_heading = "Ends", requires = "udp_to",
          conflicts_with_all = ["server", "to"])]
    udp_listen: Option<SocketAddr>,
    /// … to this address
    #[arg(long, value_name = "ADDRESS", help_heading = "Ends", requires = "udp_listen")]
    udp_to: Option<SocketAddr>,
    /// Write what became of each packet, one JSON line each
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Do not tell what the link did
    #[arg(long, short)]
    quiet: bool,
    /// Command to run on the client's side [default: wait for Ctrl-C]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl LinkArgs {
    /// Sets the link up, runs the commands over it and tells what it did.
    ///
    /// # Errors
    /// If the options make no sense, root is missing, or a command cannot be started.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let link = self.link.link().map_err(LinkError::Options)?;
        let schedule = PathSchedule::new(link, self.seed, WEATHER_US, self.link.outage.clone());
        let record = self
            .record
            .as_ref()
            .map(|path| File::create(path).map_err(LinkError::io(path.display().to_string())));
        let record = record.transpose()?;
        match self.udp_listen.zip(self.udp_to) {
            Some((listen, to)) => self.relay_udp(schedule, record, listen, to).await,
            None => self.join_namespaces(schedule, record).await,
        }
    }

    async fn relay_udp(
        &self,
        schedule: PathSchedule,
        record: Option<File>,
        listen: SocketAddr,
        to: SocketAddr,
    ) -> anyhow::Result<ExitCode> {
        let socket = UdpSocket::bind(listen).map_err(LinkError::io(listen.to_string()))?;
        let bound = socket.local_addr()?;
        let relay = LinkRelay::start(UdpWire::new(vec![(socket, to)])?, vec![schedule], record)?;
        // Whoever reads the line below may send at once.
        relay.begin(0, Instant::now());
        self.tell(&format!("UDP from {bound} to {to}"));
        self.run_client(relay, None).await
    }

    async fn join_namespaces(
        &self,
        schedule: PathSchedule,
        record: Option<File>,
    ) -> anyhow::Result<ExitCode> {
        let (ends, wire) = tun::create(Paths::One)?;
        let relay = LinkRelay::start(wire, vec![schedule], record)?;
        for to in self.forwards() {
            forward::forward(&ends.server, to)?;
            self.tell(&format!("{SERVER}:{} leads to {to}", to.port()));
        }
        self.tell_namespaces(&ends);
        let server = self.server.as_ref().map(|shell| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", shell]);
            ProcessGroup::start(command, Some(&ends.server))
        });
        let mut server = server.transpose()?;
        if let Some(port) = self.wait {
            wait_for_server(&ends.server, port, server.as_mut()).await?;
        }
        relay.begin(0, Instant::now());
        let code = self.run_client(relay, Some(&ends.client)).await;
        if let Some(server) = server {
            server.stop().await;
        }
        code
    }

    fn forwards(&self) -> Vec<SocketAddr> {
        match (&self.server, self.to.is_empty()) {
            (None, true) => vec![DEFAULT_TO.parse().expect("a fixed address")],
            _ => self.to.clone(),
        }
    }

    async fn run_client(
        &self,
        relay: LinkRelay,
        inside: Option<&Namespace>,
    ) -> anyhow::Result<ExitCode> {
        let client = self.command.split_first().map(|(program, arguments)| {
            let mut command = Command::new(program);
            command.args(arguments);
            command::start(command, inside)
        });
        let code = command::wait(client.transpose()?).await?;
        let summary = relay.stop()?;
        if !self.quiet {
            eprint!("{}", summary.text());
        }
        Ok(code)
    }

    fn tell(&self, line: &str) {
        if !self.quiet {
            eprintln!("link: {line}");
        }
    }

    fn tell_namespaces(&self, ends: &Ends) {
        for (side, namespace) in [("client", &ends.client), ("server", &ends.server)] {
            self.tell(&format!("{side}'s side: nsenter --net={}", namespace.path().display()));
        }
    }
}

/// Waits until somebody accepts connections on `port` of the far side.
async fn wait_for_server(
    inside: &Namespace,
    port: u16,
    mut server: Option<&mut ProcessGroup>,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let address = SocketAddr::from((SERVER, port));
    loop {
        // Refused at once while nobody listens: the address is the far side's own.
        if inside.within(|| TcpStream::connect(address))?.is_ok() {
            return Ok(());
        }
        if let Some(status) = server.as_mut().and_then(|server| server.ended().transpose()) {
            anyhow::bail!("the server has ended before it listened on port {port}: {}", status?);
        }
        anyhow::ensure!(began.elapsed() < WAIT_LIMIT, "nobody listens on {SERVER}:{port}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
