//! `loquent link`: its options, the setup of the link, the commands that run over it, and its
//! statistics.

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
use super::observer::{PacketObserver, PacketRecord};
use super::options::LinkOptions;
use super::relay::LinkRelay;
use super::tun::{self, Ends, Paths, SERVER};
use super::udp::UdpWire;
use super::{LinkError, forward};

const EXAMPLES: &str = "\
The commands run in two network namespaces that are connected only to each other. The server's \
address is 10.77.0.2, the client's 10.77.0.1 (also in $LOQUENT_LINK_SERVER and \
$LOQUENT_LINK_CLIENT). What is forwarded to this machine's own servers is also at 127.0.0.1 on the \
client's side, so that a program finds a server where it is without the link. Both namespaces \
disappear when this program ends. Namespaces need root.

Examples:
  a request over a bad network to the server on this machine's port 8080:
    loquent link --rtt 400 --loss default -- curl -N http://127.0.0.1:8080/v1/models
  server and client both inside; the client starts once the server listens:
    loquent link --rtt 100 --loss 2% --server 'loquent serve --host 0.0.0.0 --open' \\
        --wait 8080 -- loquent chat --url http://10.77.0.2:8080
  a shell on the client's side; `nsenter` as printed enters from elsewhere:
    loquent link --loss bursts:900,100 --outage 10-13 -- bash
  without root, for QUIC only; clients connect to port 9000:
    loquent link --rtt 400 --loss default --udp-listen 127.0.0.1:9000 --udp-to 127.0.0.1:8080

The same seed loses the same packets of the same traffic, as in `loquent sim`. The exit status is \
the command's.";

/// Default of `--to`: the default listen address of `loquent serve`.
const DEFAULT_TO: &str = "127.0.0.1:8080";
/// Time after which the losses of a link repeat: one hour.
const SCHEDULE_US: u64 = 3_600_000_000;
/// Maximum wait for a server to listen.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Emulate a bad network between two commands, with real packets
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct LinkArgs {
    #[command(flatten)]
    link: LinkOptions,
    /// Seed that decides which packets are lost
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Shell command to run on the server's side; it must listen on 0.0.0.0
    #[arg(long, value_name = "COMMAND", help_heading = "Ends")]
    server: Option<String>,
    /// Start the client once the server accepts TCP connections on PORT
    #[arg(long, value_name = "PORT", help_heading = "Ends", conflicts_with = "udp_listen")]
    wait: Option<u16>,
    /// Forward the server side's port of this number to ADDRESS; repeatable
    ///
    /// TCP and UDP. The default is 127.0.0.1:8080 if there is no --server.
    #[arg(long, value_name = "ADDRESS", help_heading = "Ends")]
    to: Vec<SocketAddr>,
    /// Without root: listen for UDP on ADDRESS
    #[arg(long, value_name = "ADDRESS", help_heading = "Ends", requires = "udp_to",
          conflicts_with_all = ["server", "to"])]
    udp_listen: Option<SocketAddr>,
    /// Without root: relay that UDP to ADDRESS
    #[arg(long, value_name = "ADDRESS", help_heading = "Ends", requires = "udp_listen")]
    udp_to: Option<SocketAddr>,
    /// Write the fate of each packet, one JSON line each
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Print no statistics of the link
    #[arg(long, short)]
    quiet: bool,
    /// Command to run on the client's side [default: wait for Ctrl-C]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl LinkArgs {
    /// Sets the link up, runs the commands over it and prints its statistics.
    ///
    /// # Errors
    /// If the options make no sense, root is missing, or a command cannot be started.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        let link = self.link.link().map_err(LinkError::Options)?;
        let schedule = PathSchedule::new(link, self.seed, SCHEDULE_US, self.link.outage.clone());
        let record = self
            .record
            .as_ref()
            .map(|path| File::create(path).map_err(LinkError::io(path.display().to_string())));
        let record = record.transpose()?.map(PacketRecord::to);
        match self.udp_listen.zip(self.udp_to) {
            Some((listen, to)) => self.relay_udp(schedule, record, listen, to).await,
            None => self.join_namespaces(schedule, record).await,
        }
    }

    async fn relay_udp(
        &self,
        schedule: PathSchedule,
        record: Option<Box<dyn PacketObserver>>,
        listen: SocketAddr,
        to: SocketAddr,
    ) -> anyhow::Result<ExitCode> {
        let socket = UdpSocket::bind(listen).map_err(LinkError::io(listen.to_string()))?;
        let bound = socket.local_addr()?;
        let relay = LinkRelay::start(UdpWire::new(vec![(socket, to)])?, vec![schedule], record)?;
        // A client may send as soon as it reads the line below.
        relay.begin(0, Instant::now());
        self.print(&format!("UDP from {bound} to {to}"));
        self.run_client(relay, None).await
    }

    async fn join_namespaces(
        &self,
        schedule: PathSchedule,
        record: Option<Box<dyn PacketObserver>>,
    ) -> anyhow::Result<ExitCode> {
        let (ends, wire) = tun::create(Paths::One)?;
        let relay = LinkRelay::start(wire, vec![schedule], record)?;
        for to in self.forwards() {
            forward::forward(&ends.server, to)?;
            forward::forward_own(&ends.client, to.port())?;
            let port = to.port();
            self.print(&format!("127.0.0.1:{port} leads over the link to {to}"));
        }
        self.print_namespaces(&ends);
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

    fn print(&self, line: &str) {
        if !self.quiet {
            eprintln!("link: {line}");
        }
    }

    fn print_namespaces(&self, ends: &Ends) {
        for (side, namespace) in [("client", &ends.client), ("server", &ends.server)] {
            self.print(&format!("{side}'s side: nsenter --net={}", namespace.path().display()));
        }
    }
}

/// Waits until a server accepts connections on `port` of the server's side.
async fn wait_for_server(
    inside: &Namespace,
    port: u16,
    mut server: Option<&mut ProcessGroup>,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let address = SocketAddr::from((SERVER, port));
    loop {
        // While no server listens this fails at once, because the address is the namespace's own.
        if inside.within(|| TcpStream::connect(address))?.is_ok() {
            return Ok(());
        }
        if let Some(status) = server.as_mut().and_then(|server| server.ended().transpose()) {
            anyhow::bail!(
                "the server command ended before it listened on port {port}: {}",
                status?
            );
        }
        anyhow::ensure!(
            began.elapsed() < WAIT_LIMIT,
            "no server listens on {SERVER}:{port} after 60 s; it must listen on 0.0.0.0"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
