fn main() {
    reproduce::speed();
}
