//! Messages and services of version 1.12 of the Container Storage Interface, generated from `proto/csi.proto`.

#![allow(missing_docs, clippy::all, reason = "generated; the specification describes them")]

tonic::include_proto!("csi.v1");
