//! Location of a network's database, from the configuration.

use std::{
    fs,
    num::NonZeroU32,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use sqlx::postgres::PgConnectOptions;
use zeroize::Zeroizing;

/// URL parameters that name files.
const FILES: [&str; 6] =
    ["sslrootcert", "ssl-root-cert", "sslcert", "ssl-cert", "sslkey", "ssl-key"];

/// Location of a network's database.
#[derive(Clone, Debug)]
pub enum DatabaseLocation {
    /// An SQLite file.
    File(PathBuf),
    /// A PostgreSQL server.
    Server {
        /// Connection options.
        options: Box<PgConnectOptions>,
        /// Whether each transaction may get another connection, as with PgBouncer.
        pooled: bool,
        /// Certificates and keys for TLS.
        files: Vec<PathBuf>,
        /// Number of the network in the database.
        network: NonZeroU32,
    },
}

impl DatabaseLocation {
    /// Parses a URL.
    ///
    /// # Errors
    /// It is not a PostgreSQL URL.
    pub fn of_url(url: &str, pooled: bool) -> anyhow::Result<Self> {
        if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
            bail!("the database's URL must begin with postgres://");
        }
        // The error is dropped, because it may contain the password.
        let options: PgConnectOptions =
            url.parse().ok().context("the database's URL is invalid")?;
        let options = options.application_name("linerate-server");
        // PgBouncer refuses unknown parameters, and no number here has a fraction.
        let options = Box::new(options.extra_float_digits(None));
        let settings = url.split_once('?').map_or("", |(_, settings)| settings).split('&');
        let of_tls = settings.filter_map(|setting| setting.split_once('='));
        let of_tls = of_tls.filter(|(name, _)| FILES.contains(name));
        let files = of_tls.map(|(_, file)| PathBuf::from(file.replace("%2F", "/"))).collect();
        Ok(Self::Server { options, pooled, files, network: NonZeroU32::MIN })
    }

    /// Selects another network in the same database. A file has only one.
    #[must_use]
    pub fn numbered(mut self, number: NonZeroU32) -> Self {
        if let Self::Server { network, .. } = &mut self {
            *network = number;
        }
        self
    }

    /// Whether both are the same network in the same database.
    pub fn is_same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(one), Self::File(other)) => one == other,
            (
                Self::Server { options, network, .. },
                Self::Server { options: others, network: its_own, .. },
            ) => network == its_own && server_and_database(options) == server_and_database(others),
            _ => false,
        }
    }

    /// Whether it is reached over a Unix socket.
    pub fn is_local(&self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Server { options, .. } => {
                options.get_socket().is_some() || options.get_host().starts_with('/')
            }
        }
    }

    /// Whether it is reached over TCP.
    pub fn is_remote(&self) -> bool {
        matches!(self, Self::Server { .. }) && !self.is_local()
    }

    /// Files that are read when connecting.
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::File(_) => Vec::new(),
            Self::Server { files, .. } => files.clone(),
        }
    }

    /// Reads the URL from a file.
    ///
    /// # Errors
    /// The file cannot be read, or contains no URL.
    pub fn of_url_file(file: &Path, pooled: bool) -> anyhow::Result<Self> {
        let name = || file.display().to_string();
        let text = Zeroizing::new(fs::read_to_string(file).with_context(name)?);
        Self::of_url(text.trim(), pooled).with_context(name)
    }
}

/// Whether a database URL contains a password.
pub fn has_password(url: &str) -> bool {
    let (base, settings) = url.split_once('?').unwrap_or((url, ""));
    let user =
        base.split_once("://").and_then(|(_, rest)| rest.split('/').next()?.rsplit_once('@'));
    let by_user = user.and_then(|(user, _)| user.split_once(':'));
    let by_setting = settings.split('&').find_map(|setting| setting.strip_prefix("password="));
    by_user
        .map(|(_, password)| password)
        .or(by_setting)
        .is_some_and(|password| !password.is_empty())
}

/// Host, port and name of a database. Different names of the same host are not recognized.
fn server_and_database(options: &PgConnectOptions) -> (String, u16, String) {
    let host = match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => options.get_host().to_ascii_lowercase(),
    };
    let database = options.get_database().unwrap_or(options.get_username());
    (host, options.get_port(), database.to_owned())
}
