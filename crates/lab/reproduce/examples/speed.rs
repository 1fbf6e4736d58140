fn main() { reproduce::speed(); }
