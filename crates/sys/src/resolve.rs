//! getaddrinfo(3), with the error that it returns: the standard library's has only its text.
#![expect(unsafe_code, reason = "getaddrinfo and the list that it returns")]

use std::{
    ffi::{CStr, CString},
    fmt, io,
    net::{SocketAddr, SocketAddrV4, SocketAddrV6},
    ptr,
};

use nix::sys::socket::{SockaddrLike as _, SockaddrStorage};

/// The code of a name that no server answered about.
pub const TEMPORARY_FAILURE: i32 = libc::EAI_AGAIN;

/// The error of a name that does not resolve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolveError {
    /// An `EAI_` constant.
    code: i32,
    text: String,
}

impl ResolveError {
    /// Whether another try is useless: the name does not exist, or has no address (`EAI_NONAME`,
    /// `EAI_NODATA`, `EAI_FAIL`), as in wg(8).
    pub fn is_permanent(&self) -> bool {
        matches!(self.code, libc::EAI_NONAME | libc::EAI_NODATA | libc::EAI_FAIL)
    }

    /// The error of an `EAI_` constant.
    pub fn from_code(code: i32) -> Self {
        let text = if code == libc::EAI_SYSTEM {
            io::Error::last_os_error().to_string()
        } else {
            // SAFETY: it takes any number.
            let text = unsafe { libc::gai_strerror(code) };
            // SAFETY: the string is constant and ends with a zero byte.
            let text = unsafe { CStr::from_ptr(text) };
            text.to_string_lossy().into_owned()
        };
        Self { code, text }
    }
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ResolveError {}

/// The first address of a host, which may be an address itself, maybe with a scope.
///
/// # Errors
/// The host has no address, or no server answers.
pub fn resolve(host: &str, port: u16) -> Result<SocketAddr, ResolveError> {
    let host = CString::new(host).map_err(|_| ResolveError::from_code(libc::EAI_NONAME))?;
    // SAFETY: zeros are a valid `addrinfo`: no flags, and no pointers.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_family = libc::AF_UNSPEC;
    hints.ai_socktype = libc::SOCK_DGRAM;
    let mut list = ptr::null_mut();
    // SAFETY: both pointers are to values that live until it returns; it writes to `list` only.
    match unsafe { libc::getaddrinfo(host.as_ptr(), ptr::null(), &raw const hints, &raw mut list) }
    {
        0 => {}
        code => return Err(ResolveError::from_code(code)),
    }
    let list = List(list);
    let mut address = list.first().ok_or_else(|| ResolveError::from_code(libc::EAI_NODATA))?;
    address.set_port(port);
    Ok(address)
}

/// What getaddrinfo(3) allocated.
struct List(*mut libc::addrinfo);

impl List {
    /// The first address.
    fn first(&self) -> Option<SocketAddr> {
        let mut next = self.0;
        while !next.is_null() {
            // SAFETY: getaddrinfo returned 0, so that each entry is valid until it is freed.
            let entry = unsafe { *next };
            // SAFETY: the address has as many bytes as the entry says.
            let address =
                unsafe { SockaddrStorage::from_raw(entry.ai_addr, Some(entry.ai_addrlen)) };
            if let Some(address) = address.and_then(ip) {
                return Some(address);
            }
            next = entry.ai_next;
        }
        None
    }
}

fn ip(address: SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddrV4::from(*v4).into());
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddrV6::from(*v6).into()))
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: it came from getaddrinfo and is freed once.
        unsafe { libc::freeaddrinfo(self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_resolve_to_themselves_with_port_and_scope() {
        for (host, address) in [
            ("192.0.2.1", "192.0.2.1:51820"),
            ("2001:db8::1", "[2001:db8::1]:51820"),
            ("fe80::1%lo", "[fe80::1%1]:51820"),
        ] {
            assert_eq!(resolve(host, 51820), Ok(address.parse().unwrap()), "{host}");
        }
    }

    #[test]
    fn a_name_that_cannot_exist_is_permanently_unresolved() {
        for host in ["a name with blanks", "fe80::1%nosuchlink", "nul\0byte", ""] {
            let error = resolve(host, 1).unwrap_err();
            assert!(error.is_permanent(), "{host}: {error}");
        }
        for code in [libc::EAI_AGAIN, libc::EAI_SYSTEM, libc::EAI_MEMORY] {
            assert!(!ResolveError::from_code(code).is_permanent(), "{code}");
        }
    }
}
