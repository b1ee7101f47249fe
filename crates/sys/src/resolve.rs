//! getaddrinfo(3) with its error code, which the standard library omits.
#![expect(unsafe_code, reason = "getaddrinfo and the list that it returns")]

use std::{
    ffi::{CStr, CString},
    fmt, io,
    net::{SocketAddr, SocketAddrV4, SocketAddrV6},
    ptr,
};

use nix::sys::socket::{SockaddrLike as _, SockaddrStorage};

/// The error code if no server answered.
pub const TEMPORARY_FAILURE: i32 = libc::EAI_AGAIN;

/// An error of getaddrinfo(3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolveError {
    /// An `EAI_` constant.
    code: i32,
    text: String,
}

impl ResolveError {
    /// Whether further attempts are useless because the name does not exist or lacks addresses
    /// (`EAI_NONAME`, `EAI_NODATA`, `EAI_FAIL`), as in wg(8).
    pub fn is_permanent(&self) -> bool {
        matches!(self.code, libc::EAI_NONAME | libc::EAI_NODATA | libc::EAI_FAIL)
    }

    /// Creates the error of an `EAI_` constant.
    pub fn from_code(code: i32) -> Self {
        let text = if code == libc::EAI_SYSTEM {
            io::Error::last_os_error().to_string()
        } else {
            // SAFETY: the function accepts every number.
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

/// The first address of a host. The host may be given as an address, with an optional scope.
///
/// # Errors
/// The host lacks addresses, or no server answers.
pub fn resolve(host: &str, port: u16) -> Result<SocketAddr, ResolveError> {
    let host = CString::new(host).map_err(|_| ResolveError::from_code(libc::EAI_NONAME))?;
    // SAFETY: zeros are a valid `addrinfo`: no flags, and no pointers.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_family = libc::AF_UNSPEC;
    hints.ai_socktype = libc::SOCK_DGRAM;
    let mut list = ptr::null_mut();
    // SAFETY: both pointers are valid until the call returns, and it writes only to `list`.
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

/// The list that getaddrinfo(3) allocated.
struct List(*mut libc::addrinfo);

impl List {
    /// The first address.
    fn first(&self) -> Option<SocketAddr> {
        let mut next = self.0;
        while !next.is_null() {
            // SAFETY: getaddrinfo returned 0, so each entry is valid until it is freed.
            let entry = unsafe { *next };
            // SAFETY: the entry contains the length of the address.
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
        // SAFETY: the list is from getaddrinfo and is freed once.
        unsafe { libc::freeaddrinfo(self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_resolve_to_themselves_with_port_and_scope_id() {
        for (host, address) in [
            ("192.0.2.1", "192.0.2.1:51820"),
            ("2001:db8::1", "[2001:db8::1]:51820"),
            ("fe80::1%lo", "[fe80::1%1]:51820"),
        ] {
            assert_eq!(resolve(host, 51820), Ok(address.parse().unwrap()), "{host}");
        }
    }

    #[test]
    fn resolving_an_invalid_name_fails_permanently() {
        for host in ["a name with blanks", "fe80::1%nosuchlink", "nul\0byte", ""] {
            let error = resolve(host, 1).unwrap_err();
            assert!(error.is_permanent(), "{host}: {error}");
        }
        for code in [libc::EAI_AGAIN, libc::EAI_SYSTEM, libc::EAI_MEMORY] {
            assert!(!ResolveError::from_code(code).is_permanent(), "{code}");
        }
    }
}
