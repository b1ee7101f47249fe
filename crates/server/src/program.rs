//! Command line of the program.

use std::{path::PathBuf, process::ExitCode};

use crate::{
    commands::{
        self, ApiKeys, Audit, Auth, Common, Networks, Nodes, PreAuthKeys, TailnetLock, Users,
        import::{self, Import},
        policy_file::PolicyFile,
    },
    configuration::{Configuration, Flags, LogFormat},
    process::{self, log, runtime},
};
use anyhow::ensure;
use clap::{CommandFactory, Parser, Subcommand};
use sys::process::discard_inherited;

/// Host a network for linerate and Tailscale clients.
#[derive(Debug, Parser)]
#[command(
    name = "linerate-server",
    version,
    long_version = sys::long_version!(),
    disable_help_subcommand = true
)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server.
    Serve {
        #[command(flatten)]
        flags: Flags,
        /// Whether to confine the running server to the files, ports and system calls that
        /// it needs.
        #[arg(long, value_name = "on|off", default_value = "on", value_parser = ["on", "off"],
              hide_possible_values = true)]
        sandbox: String,
    },
    /// Create, list, rename and delete users.
    #[command(subcommand, aliases = ["user"])]
    Users(Users),
    /// Create, list, expire and delete keys that machines join with.
    #[command(subcommand, name = "preauthkeys", aliases = ["preauthkey", "authkey", "pre"])]
    PreAuthKeys(PreAuthKeys),
    /// List, rename, tag, expire and delete nodes, and approve their routes.
    #[command(subcommand, aliases = ["node"])]
    Nodes(Nodes),
    /// List the networks of the server.
    #[command(subcommand, aliases = ["network"])]
    Networks(Networks),
    /// Admit waiting machines, and approve or reject waiting SSH logins.
    #[command(subcommand)]
    Auth(Auth),
    /// Import a network: headscale's, an export or a backup.
    Import(Import),
    /// Export the whole network, with its keys, to a JSON file.
    Export {
        /// The file.
        file: PathBuf,
    },
    /// Copy the network, with its keys, to an SQLite file. The server may be running.
    Backup {
        /// The file to create.
        file: PathBuf,
    },
    /// Create, list, expire and delete API keys.
    #[command(subcommand, name = "apikeys", aliases = ["apikey", "api"])]
    ApiKeys(ApiKeys),
    /// Print a link that opens the administrators' page, once and within an hour.
    AdminLink,
    /// Show, export and verify the audit log.
    Audit(Audit),
    /// Show the state of tailnet lock, and allow a node to enable it.
    #[command(subcommand)]
    Lock(TailnetLock),
    /// Check whether the running server is healthy. The exit status is 1 if not.
    Health,
    /// Print the version.
    Version,
    /// Check the configuration, but not the files that it names. An error gives exit status 1.
    #[command(name = "configtest")]
    ConfigTest,
    /// Show, set and check the policy, and print its packet filters.
    #[command(subcommand)]
    Policy(PolicyFile),
}

/// Description of the arguments, for manual pages and completions.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    // PostgreSQL's library reads environment variables such as `PGSSLMODE`.
    if let Err(error) = discard_inherited(|name| name.starts_with("PG")) {
        eprintln!("linerate-server: inherited files cannot be closed: {error}");
        return ExitCode::FAILURE;
    }
    let Arguments { common, command } = Arguments::parse();
    let ended = match command {
        Command::Serve { flags, sandbox } => {
            serve(&common, flags, sandbox == "on").map(|()| ExitCode::SUCCESS)
        }
        command => runtime().and_then(|runtime| runtime.block_on(run(common, command))),
    };
    match ended {
        Ok(status) => status,
        Err(error) => {
            eprintln!("linerate-server: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(common: &Common, flags: Flags, is_confined: bool) -> anyhow::Result<()> {
    ensure!(common.network.is_none(), "the server serves all of its networks: omit --network");
    let configuration = Configuration::read(common.config.as_deref())?.with(flags);
    log::start(configuration.log_format, configuration.log_level.clone());
    if let Some(warning) = configuration.exposed_secret(common.config.as_deref()) {
        tracing::warn!("{warning}");
    }
    let is_json = configuration.log_format == LogFormat::Json;
    let ended = process::run(configuration, is_confined);
    match ended {
        // Programs that parse the log expect only JSON.
        Err(error) if is_json => {
            tracing::error!("{error:#}");
            std::process::exit(1);
        }
        ended => ended,
    }
}

async fn run(common: Common, command: Command) -> anyhow::Result<ExitCode> {
    let ended = match command {
        Command::Import(arguments) => return import::import(&common, arguments).await,
        Command::Serve { .. } => Ok(()),
        Command::Users(command) => commands::users(&common, command).await,
        Command::PreAuthKeys(command) => commands::pre_auth_keys(&common, command).await,
        Command::Nodes(command) => commands::nodes(&common, command).await,
        Command::Networks(command) => commands::networks(&common, command).await,
        Command::Auth(command) => commands::auth(&common, command).await,
        Command::Export { file } => import::export(&common, &file).await,
        Command::Backup { file } => import::back_up(&common, &file).await,
        Command::ApiKeys(command) => commands::api_keys(&common, command).await,
        Command::AdminLink => commands::admin_link(&common).await,
        Command::Audit(arguments) => commands::audit(&common, arguments).await,
        Command::Lock(command) => commands::tailnet_lock(&common, command).await,
        Command::Health => commands::health(&common).await,
        Command::Version => commands::version(&common),
        Command::ConfigTest => commands::check_configuration(&common),
        Command::Policy(command) => command.run(&common).await,
    };
    ended.map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_of_headscale_are_accepted() {
        Arguments::command().debug_assert();
        for line in [
            "users create anna --display-name Anna --email a@example.com --picture-url https://a",
            "user new anna",
            "users list --name anna",
            "users ls -i 1",
            "users list -e a@example.com -o yaml",
            "users rename -i 1 -r annie",
            "users mv --name anna --new-name annie",
            "users destroy --identifier 1 --force",
            "--force users delete -n anna",
            "nodes list",
            "nodes list --user anna --tags",
            "node ls -u anna -t -o json-line",
            "nodes list-routes -i 1",
            "nodes register -u anna -k key",
            "nodes expire -i 1 -e 2027-01-01T00:00:00Z",
            "nodes expire -i 1 --disable",
            "nodes logout -i 1",
            "nodes rename -i 1 name",
            "nodes delete -i 1 --force",
            "nodes backfillips --force",
            "nodes tag -i 1 -t tag:a,tag:b",
            "nodes approve-routes -i 1 -r 10.0.0.0/8,192.168.0.0/24",
            "preauthkeys create -u 1 --reusable --ephemeral -e 1w --tags tag:a",
            "preauthkeys list -u anna",
            "pre ls",
            "authkey e -i 1",
            "preauthkey d -i 1",
            "apikeys create -e 90d12h",
            "api ls",
            "apikey expire -p prefix",
            "apikeys remove -i 1",
            "auth register -u anna --auth-id number",
            "auth approve --auth-id number",
            "auth reject --auth-id number",
            "policy get",
            "policy set -f policy.hujson",
            "policy check -f policy.hujson",
            "health",
            "version -o json",
            "configtest -c server.toml",
            "serve -c server.toml",
        ] {
            let words = ["linerate-server"].into_iter().chain(line.split(' '));
            let read = Arguments::try_parse_from(words);
            assert!(read.is_ok(), "{line}: {}", read.unwrap_err());
        }
    }
}
