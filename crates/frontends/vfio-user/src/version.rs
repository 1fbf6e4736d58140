//! Version negotiation: the capabilities, which travel as JSON.

use rustix::io::Errno;
use serde_json::{Map, Value, json};

use crate::wire;

/// The protocol version that we speak: 0.1, that of the specification 0.9.
const MAJOR: u16 = 0;
const MINOR: u16 = 1;
/// DMA page sizes that we take, or'ed: 4 KiB pages, and so every multiple of them.
const PGSIZES_BYTES: u64 = 4096;

/// What both sides agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// The most file descriptors that the client takes with one message.
    pub client_max_fds: u64,
    /// The most data that one region access may carry, bytes.
    pub max_data_bytes: u32,
}

/// Answers a VERSION message; returns the agreement and the reply's payload.
///
/// A client may leave the JSON out, or leave any capability out; the specification's defaults hold
/// then. Only what the client proposed is answered, besides the two limits that every client knows.
///
/// # Errors
/// `ENOTSUP`: another major version. `EINVAL`: JSON that is none, or a capability of the wrong type.
pub fn negotiate(major: u16, minor: u16, json: &[u8]) -> Result<(Negotiated, Vec<u8>), Errno> {
    if major != MAJOR {
        return Err(Errno::NOTSUP);
    }
    let proposed = capabilities(json)?;
    let number = |name: &str, default: u64| match proposed.get(name) {
        None => Ok(default),
        Some(value) => value.as_u64().ok_or(Errno::INVAL),
    };
    let client_max_fds = number("max_msg_fds", 1)?;
    let client_max_data = number("max_data_xfer_size", 1 << 20)?;
    let client_max_maps = number("max_dma_maps", u64::from(u16::MAX))?;

    let mut ours = Map::new();
    ours.insert("max_msg_fds".into(), json!(wire::MAX_MSG_FDS));
    ours.insert("max_data_xfer_size".into(), json!(wire::MAX_DATA_BYTES));
    if proposed.contains_key("max_dma_maps") {
        ours.insert("max_dma_maps".into(), json!(client_max_maps.min(guest_memory::MAX_RANGES as u64)));
    }
    if proposed.contains_key("pgsizes") {
        ours.insert("pgsizes".into(), json!(PGSIZES_BYTES));
    }
    let text = json!({ "capabilities": ours }).to_string();
    let max_data_bytes = u32::try_from(client_max_data).unwrap_or(u32::MAX).min(wire::MAX_DATA_BYTES);
    Ok((Negotiated { client_max_fds, max_data_bytes }, wire::version(MAJOR, minor.min(MINOR), &text)))
}

/// The `capabilities` object; empty if there is none.
fn capabilities(json: &[u8]) -> Result<Map<String, Value>, Errno> {
    let Some((end, text)) = json.split_last() else { return Ok(Map::new()) };
    if *end != 0 {
        return Err(Errno::INVAL);
    }
    let top = serde_json::from_slice(text).map_err(|_| Errno::INVAL)?;
    let Value::Object(mut top) = top else { return Err(Errno::INVAL) };
    match top.remove("capabilities") {
        None => Ok(Map::new()),
        Some(Value::Object(capabilities)) => Ok(capabilities),
        Some(_) => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply_json(payload: &[u8]) -> Value {
        assert_eq!(payload.last(), Some(&0));
        serde_json::from_slice(&payload[4..payload.len() - 1]).unwrap()
    }

    #[test]
    fn no_json_means_the_defaults() {
        let (agreed, reply) = negotiate(0, 1, b"").unwrap();
        assert_eq!(agreed, Negotiated { client_max_fds: 1, max_data_bytes: wire::MAX_DATA_BYTES });
        let expected = json!({"capabilities": {"max_msg_fds": 16, "max_data_xfer_size": 65536}});
        assert_eq!(reply_json(&reply), expected);
    }

    #[test]
    fn only_what_was_proposed_is_answered() {
        let json = b"{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":4096,\"pgsizes\":4096,\
            \"max_dma_maps\":100,\"write_multiple\":true,\"twin_socket\":{\"supported\":true},\
            \"migration\":{\"pgsize\":4096}}}\0";
        let (agreed, reply) = negotiate(0, 7, json).unwrap();
        assert_eq!(agreed, Negotiated { client_max_fds: 8, max_data_bytes: 4096 });
        assert_eq!(reply[..4], [0, 0, 1, 0]);
        let capabilities = &reply_json(&reply)["capabilities"];
        assert_eq!(capabilities["pgsizes"], 4096);
        assert_eq!(capabilities["max_dma_maps"], 100);
        for absent in ["write_multiple", "twin_socket", "migration"] {
            assert!(capabilities.get(absent).is_none(), "{absent}");
        }
    }

    #[test]
    fn garbage_is_refused() {
        let bad: [&[u8]; 9] = [
            b"{}",
            b"\0",
            b"[]\0",
            b"{\0",
            b"\xff\xfe\0",
            b"{\"capabilities\":3}\0",
            b"{\"capabilities\":{\"max_msg_fds\":\"9\"}}\0",
            b"{\"capabilities\":{\"max_msg_fds\":-1}}\0",
            b"{\"capabilities\":{\"max_data_xfer_size\":1e99}}\0",
        ];
        for json in bad {
            assert_eq!(negotiate(0, 1, json), Err(Errno::INVAL), "{:?}", String::from_utf8_lossy(json));
        }
        let deep = [b"{\"capabilities\":".repeat(1000), vec![0]].concat();
        assert_eq!(negotiate(0, 1, &deep), Err(Errno::INVAL));
        assert_eq!(negotiate(1, 0, b""), Err(Errno::NOTSUP));
    }
}
